"""Contract P2, FAULTS F11: where settings come from, which source wins, and what is refused, in words that help."""

import os
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator

from mailroom import settings_sources
from mailroom.errors import ConfigurationError
from mailroom.settings import DatabaseSettings, MessageBusSettings, Section, Settings, longest_redelivery_seconds

URL = {"url": "sqlite:///shop.db"}
TOML = '[database]\nurl = "sqlite:///shop.db"\n'
OUTBOX = "message_bus.enable_outbox"
VARIABLE = "MESSAGE_BUS__ENABLE_OUTBOX"


class Card(Section):
    limit: int = 100
    currency: str = "EUR"


class PaymentsSettings(Section):
    api_key: SecretStr = SecretStr("")
    methods: list[Literal["card", "cash"]] = Field(default_factory=list)
    fees: dict[str, float] = Field(default_factory=dict)
    note: str | list[str] = ""
    broker_password: int = 0
    card: Card | None = None

    @field_validator("api_key")
    @classmethod
    def check_key(cls, key: SecretStr) -> SecretStr:
        if key.get_secret_value().startswith("bad"):
            raise ValueError(f"{key.get_secret_value()} is a bad key")
        return key

    @model_validator(mode="after")
    def check_together(self) -> "PaymentsSettings":
        if self.methods and self.note == "none":
            raise ValueError("payments.methods and payments.note = none exclude\neach other")
        return self


class Plain(BaseModel):
    """A section that is an ordinary model of pydantic."""

    size: int = 1
    limits: list[int] = []


class ShopSettings(Settings):
    payments: PaymentsSettings = PaymentsSettings(methods=["cash"])
    plain: Plain = Plain()
    shop_name: str = "shop"

    def contradictions(self) -> list[str]:
        return [*super().contradictions(), *(["shop_name is taken"] if self.shop_name == "taken" else [])]


class Sources:
    """The sources in an otherwise empty working directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env: dict[str, str] = {}
        self.toml(TOML)

    def toml(self, text: str) -> None:
        (self.folder / "settings.toml").write_text(text, encoding="utf-8")

    def dotenv(self, *lines: str) -> None:
        (self.folder / ".env").write_text("\n".join(lines), encoding="utf-8")

    def secret(self, name: str, text: str | bytes) -> None:
        secrets = self.folder / "run-secrets"
        secrets.mkdir(exist_ok=True)
        (secrets / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def load(self) -> ShopSettings:
        return ShopSettings.load(env=self.env)

    def refusal(self) -> str:
        with pytest.raises(ConfigurationError) as refused:
            self.load()
        return str(refused.value)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings_sources, "SECRETS_DIR", tmp_path / "run-secrets")
    return Sources(tmp_path)


def refusal(**sections: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        Settings(**{"database": URL, **sections})
    return str(refused.value)


class TestSources:
    def test_each_beats_the_one_before_and_is_named(self, sources: Sources) -> None:
        assert (sources.load().message_bus.enable_outbox, sources.load().source(OUTBOX)) == (None, None)
        sources.toml(TOML + "[message_bus]\nenable_outbox = true\n")
        assert (sources.load().message_bus.enable_outbox, sources.load().source(OUTBOX)) == (True, "settings.toml")
        sources.dotenv(f"{VARIABLE}=false")
        assert (sources.load().message_bus.enable_outbox, sources.load().source(OUTBOX)) == (False, ".env")
        sources.secret(VARIABLE, "true\n")
        loaded = sources.load()
        assert (loaded.message_bus.enable_outbox, loaded.source(OUTBOX)) == (True, f"secret file {VARIABLE}")
        sources.env[VARIABLE] = "false"
        loaded = sources.load()
        assert (loaded.message_bus.enable_outbox, loaded.source(OUTBOX)) == (False, f"environment variable {VARIABLE}")

    def test_code_reads_nothing_else(self, sources: Sources) -> None:
        sources.toml(TOML + "[message_bus]\nenable_outbox = true\n")
        sources.dotenv(f"{VARIABLE}=true")
        settings = Settings(database=URL, message_bus={"enable_inbox": False})
        assert (settings.message_bus.enable_outbox, settings.source(OUTBOX)) == (None, None)
        assert settings.source("message_bus.enable_inbox") == "code"
        assert Settings(database=URL, message_bus=MessageBusSettings(enable_outbox=True)).source(OUTBOX) == "code"

    def test_the_environment_is_that_of_the_process(self, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "environ", {VARIABLE: "true"})
        assert Settings.load().source(OUTBOX) == f"environment variable {VARIABLE}"

    def test_a_setting_that_does_not_exist_has_no_source_but_an_error(self, sources: Sources) -> None:
        with pytest.raises(LookupError, match=r"did you mean message_bus\.enable_outbox\?"):
            sources.load().source("message_bus.enable_outbx")
        with pytest.raises(LookupError, match="no such setting"):
            sources.load().source("message_bus")

    def test_a_section_given_in_parts_by_several_sources_is_merged(self, sources: Sources) -> None:
        sources.toml(TOML + "[outbox]\nbatch_size = 10\nmax_attempts = 3\n")
        sources.env["OUTBOX__BATCH_SIZE"] = "20"
        outbox = sources.load().outbox
        assert (outbox.batch_size, outbox.max_attempts, outbox.lease_seconds) == (20, 3, 300)

    def test_a_section_given_in_part_keeps_the_defaults_of_the_project(self, sources: Sources) -> None:
        sources.env["PAYMENTS__FEES"] = '{"card": 1.5}'
        payments = sources.load().payments
        assert (payments.methods, payments.fees) == (["cash"], {"card": 1.5})
        assert ShopSettings(database=URL, payments={"api_key": "k"}).payments.methods == ["cash"]

    def test_names_are_case_insensitive_and_the_upper_case_one_wins(self, sources: Sources) -> None:
        sources.env |= {"outbox__batch_size": "1", "Outbox__Max_Attempts": "3", "shop_NAME": "tea"}
        assert (sources.load().outbox.batch_size, sources.load().outbox.max_attempts) == (1, 3)
        assert sources.load().shop_name == "tea"
        sources.env["OUTBOX__BATCH_SIZE"] = "2"
        assert sources.load().outbox.batch_size == 2
        sources.env["OUTBOX__BATCH_SIZE"] = " "
        assert sources.load().outbox.batch_size == 1

    def test_a_secret_file_may_be_named_in_lower_case(self, sources: Sources) -> None:
        sources.secret("database__url", "sqlite:///secret.db\n")
        assert sources.load().database.url.get_secret_value() == "sqlite+aiosqlite:///secret.db"
        assert sources.load().source("database.url") == "secret file database__url"

    def test_secret_files_may_be_links_as_kubernetes_mounts_them(self, sources: Sources) -> None:
        sources.secret("..data", "sqlite:///mounted.db")
        (sources.folder / "run-secrets" / "DATABASE__URL").symlink_to("..data")
        assert sources.load().database.safe_url == "sqlite+aiosqlite:///mounted.db"

    def test_the_secret_files_of_other_programs_are_not_opened(self, sources: Sources) -> None:
        sources.secret("keystore.p12", b"\xff\xfe\x00")
        (sources.folder / "run-secrets" / "kubernetes.io").mkdir()
        assert sources.load().source("database.url") == "settings.toml"

    def test_the_folder_of_secret_files_can_be_named(self, sources: Sources, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / VARIABLE).write_text("true")
        assert Settings.load(env={"SECRETS_DIR": str(elsewhere)}).message_bus.enable_outbox is True
        assert Settings.load(env={}, secrets_dir=elsewhere).message_bus.enable_outbox is True
        sources.env["SECRETS_DIR"] = "absent"
        assert "SECRETS_DIR" in sources.refusal()

    def test_the_lines_of_the_example_work(self, sources: Sources) -> None:
        sources.dotenv(
            "# Settings of one machine.",
            "DATABASE__URL=sqlite+aiosqlite:///./other.db   # here",
            f"export {VARIABLE}=true",
            'MESSAGE_BUS__ENABLE_INBOX="true"',
            "OUTBOX__RETENTION_DAYS=",
            "MESSAGE_BUS__ENDPOINT_PREFIX",
        )
        settings = sources.load()
        assert settings.database.safe_url == "sqlite+aiosqlite:///./other.db"
        assert (settings.message_bus.enable_outbox, settings.message_bus.enable_inbox) == (True, True)
        assert (settings.outbox.retention_days, settings.source("outbox.retention_days")) == (7, None)

    def test_nothing_in_dotenv_is_expanded(self, sources: Sources) -> None:
        sources.dotenv("PAYMENTS__API_KEY=pa${HOME}$x")
        assert sources.load().payments.api_key.get_secret_value() == "pa${HOME}$x"

    def test_a_line_of_dotenv_that_sets_nothing_is_refused_if_it_is_meant_for_us(self, sources: Sources) -> None:
        sources.dotenv("", "OTHER thing", "", f"{VARIABLE} true")
        assert sources.refusal() == ".env, line 4: must be NAME=value"

    def test_dotenv_can_be_left_out_and_may_be_a_folder(self, sources: Sources) -> None:
        sources.dotenv(f"{VARIABLE}=true")
        assert Settings.load(env={}, dotenv=None).message_bus.enable_outbox is None
        (sources.folder / ".env").unlink()
        (sources.folder / ".env").mkdir()
        assert sources.load().message_bus.enable_outbox is None

    def test_files_may_begin_with_a_byte_order_mark(self, sources: Sources) -> None:
        sources.toml("\ufeff" + TOML)
        sources.dotenv(f"\ufeff{VARIABLE}=true")
        assert sources.load().message_bus.enable_outbox is True


class TestSettingsFile:
    def test_its_absence_is_an_error_that_says_what_to_do(self, sources: Sources) -> None:
        (sources.folder / "settings.toml").unlink()
        sources.env["DATABASE__URL"] = "sqlite:///shop.db"
        assert f"no settings.toml in {sources.folder}" in sources.refusal()
        assert "SETTINGS_FILE" in sources.refusal()

    def test_it_is_found_by_a_variable(self, sources: Sources, tmp_path: Path) -> None:
        (sources.folder / "settings.toml").rename(sources.folder / "production.toml")
        sources.env["SETTINGS_FILE"] = " production.toml "
        assert sources.load().source("database.url") == "production.toml"
        sources.env["SETTINGS_FILE"] = "absent.toml"
        assert sources.refusal().startswith("SETTINGS_FILE names absent.toml")

    def test_a_blank_variable_names_no_file(self, sources: Sources) -> None:
        sources.env["SETTINGS_FILE"] = " "
        assert sources.load().source("database.url") == "settings.toml"

    def test_one_elsewhere_is_named_by_its_whole_path(self, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
        empty = sources.folder / "empty"
        empty.mkdir()
        monkeypatch.chdir(empty)
        file = sources.folder / "settings.toml"
        assert Settings.load(env={}, settings_file=file).source("database.url") == str(file)

    @pytest.mark.parametrize(
        ("content", "says"),
        [(b"url = ", "settings.toml is not TOML: "), (b"# \xff", "cannot be read: it is not UTF-8")],
    )
    def test_one_that_cannot_be_read_is_an_error_that_names_it(
        self, sources: Sources, content: bytes, says: str
    ) -> None:
        (sources.folder / "settings.toml").write_bytes(content)
        assert says in sources.refusal()

    def test_names_that_it_does_not_know_are_refused(self, sources: Sources) -> None:
        sources.toml(
            'enable_outbox = true\n[database]\nurl = "sqlite:///x"\n[mesage_bus]\nprovider = "in_process"\n'
            "[outbox]\nbatchsize = 3\n[pigeons]\nx = 1\n"
        )
        assert sources.refusal().splitlines() == [
            "settings.toml, enable_outbox: no such setting; did you mean message_bus.enable_outbox?",
            "settings.toml, mesage_bus: no such setting; did you mean message_bus?",
            "settings.toml, outbox.batchsize: no such setting; did you mean outbox.batch_size?",
            "settings.toml, pigeons: no such setting",
        ]

    def test_a_section_must_be_one(self, sources: Sources) -> None:
        sources.toml("message_bus = 3\n" + TOML)
        assert sources.refusal() == "settings.toml, message_bus: must be a section, written as [message_bus]"


class TestBlank:
    @pytest.mark.parametrize("blank", ["", " ", "\t \n"])
    def test_a_blank_value_counts_as_absent_and_the_next_source_decides(self, sources: Sources, blank: str) -> None:
        sources.env[VARIABLE] = blank
        assert (sources.load().message_bus.enable_outbox, sources.load().source(OUTBOX)) == (None, None)
        sources.secret(VARIABLE, blank)
        sources.dotenv(f'{VARIABLE}="{blank}"')
        assert (sources.load().message_bus.enable_outbox, sources.load().source(OUTBOX)) == (None, None)
        sources.toml(TOML + "[message_bus]\nenable_outbox = true\n")
        assert (sources.load().message_bus.enable_outbox, sources.load().source(OUTBOX)) == (True, "settings.toml")

    @pytest.mark.parametrize("text", ["true", " true", "TRUE\n", "\tyes ", "1", "on"])
    def test_white_space_around_a_value_does_not_count(self, sources: Sources, text: str) -> None:
        sources.env[VARIABLE] = text
        assert sources.load().message_bus.enable_outbox is True


class TestWrongValues:
    @pytest.mark.parametrize("text", ["maybe", "2", "truee", "none"])
    def test_what_is_no_boolean_is_refused_with_the_variable(self, sources: Sources, text: str) -> None:
        sources.env[VARIABLE] = text
        assert sources.refusal() == f"environment variable {VARIABLE}: must be true or false, and is {text!r}"

    def test_everything_wrong_is_said_at_once_one_per_line(self, sources: Sources) -> None:
        sources.toml(TOML + "[outbox]\nbatch_size = 0\nmax_attempts = true\n")
        sources.dotenv("OUTBOX__LEASE_SECONDS=soon", "OUTBOX__RETENTION=3")
        sources.secret("LOGGING__FORMAT", "xml")
        sources.env |= {"MESSAGE_BUS__ENABLE_OUTBX": "true", "OUTBOX__BACKOFF_BASE_SECONDS": "inf"}
        assert sorted(sources.refusal().splitlines()) == [
            ".env, OUTBOX__LEASE_SECONDS: must be a valid number, unable to parse string as a number, and is 'soon'",
            ".env, OUTBOX__RETENTION: no such setting; did you mean OUTBOX__RETENTION_DAYS?",
            "environment variable MESSAGE_BUS__ENABLE_OUTBX: no such setting; did you mean MESSAGE_BUS__ENABLE_OUTBOX?",
            "environment variable OUTBOX__BACKOFF_BASE_SECONDS: must be a finite number, and is 'inf'",
            "secret file LOGGING__FORMAT: must be 'console' or 'json', and is 'xml'",
            "settings.toml, outbox.batch_size: must be greater than or equal to 1, and is 0",
            "settings.toml, outbox.max_attempts: must be a number, and is True",
        ]

    def test_contradictions_and_unknown_names_are_said_together(self, sources: Sources) -> None:
        sources.env |= {"OUTBOX__LEASE_SECONDS": "60", "OUTBOX__LEASE": "60", "SHOP_NAME": "taken"}
        lines = sources.refusal().splitlines()
        assert len(lines) == 3
        assert "OUTBOX__LEASE_SECONDS?" in lines[0]
        assert "(environment variable OUTBOX__LEASE_SECONDS)" in lines[1]
        assert lines[2] == "shop_name is taken"

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("MESSAGE_BUS__RETRYLIMIT", "MESSAGE_BUS__RETRY_LIMIT"),
            ("OUTBOX__ENABLE_OUTBOX", VARIABLE),
            ("MESSAGE_BUS__REDELIVERY_INTERVALS_SECONDS__0", "MESSAGE_BUS__REDELIVERY_INTERVALS_SECONDS"),
            ("payments__card__limits", "PLAIN__LIMITS"),
            ("PAYMENTS__CARD__CURENCY", "PAYMENTS__CARD__CURRENCY"),
        ],
    )
    def test_a_mistyped_variable_is_refused_with_the_nearest_right_name(
        self, sources: Sources, name: str, meant: str
    ) -> None:
        sources.env[name] = "1"
        assert sources.refusal() == f"environment variable {name}: no such setting; did you mean {meant}?"

    def test_for_a_name_unlike_any_other_the_section_is_listed(self, sources: Sources) -> None:
        sources.env["LOGGING__QQQ"] = "1"
        assert sources.refusal() == "environment variable LOGGING__QQQ: no such setting; logging has level, format"

    def test_variables_of_others_are_ignored(self, sources: Sources) -> None:
        others = ("HOME", "DATABASE", "DATABASE_URL", "OUTBOX", "LOGGING_", "GIT__X", "__")
        sources.env = dict.fromkeys(others, "x")
        sources.dotenv("POSTGRES_PASSWORD=x", "GIT__X=1")
        assert sources.load().source("database.url") == "settings.toml"

    def test_unknown_names_in_code_are_refused(self) -> None:
        assert refusal(message_bus={"enable_outbx": True}, outbx={}) == (
            "message_bus.enable_outbx: no such setting; did you mean message_bus.enable_outbox?\n"
            "outbx: no such setting; did you mean outbox?"
        )
        assert refusal(message_bus=3) == "message_bus: must be a valid dictionary or instance of MessageBusSettings"

    @pytest.mark.parametrize("prefix", ["-shop", "shop.", "a b", "ü", "a" * 51, "a\nb"])
    def test_a_prefix_that_a_queue_cannot_be_named_by_is_refused(self, prefix: str) -> None:
        assert refusal(message_bus={"endpoint_prefix": prefix}).startswith("message_bus.endpoint_prefix: must ")

    @pytest.mark.parametrize(
        ("section", "name", "value"),
        [
            ("database", "pool_size", 0),
            ("database", "max_overflow", -1),
            ("database", "pool_timeout_seconds", 0),
            ("database", "busy_timeout_seconds", -1),
            ("message_bus", "retry_limit", -1),
            ("message_bus", "retry_min_interval_seconds", 0),
            ("message_bus", "concurrency", 0),
            ("message_bus", "cascade_limit", 0),
            ("outbox", "batch_size", 1001),
            ("outbox", "max_attempts", 0),
            ("outbox", "polling_interval_seconds", 0),
            ("outbox", "lease_seconds", 1e12),
            ("outbox", "retention_days", -1),
            ("outbox", "retention_days", 1e9),
            ("outbox", "dead_letter_retention_days", 0),
            ("outbox", "cleanup_interval_hours", 0),
            ("health", "port", 0),
            ("health", "port", 65_536),
        ],
    )
    def test_bounds_are_checked(self, section: str, name: str, value: float) -> None:
        extra = URL if section == "database" else {}
        assert re.match(
            rf"{section}\.{name}: must be .* than .*, and is ", refusal(**{section: {**extra, name: value}})
        )


class TestStructuredValues:
    @pytest.mark.parametrize("text", ["1, 20,300", "[1, 20, 300]"])
    def test_a_list_is_json_or_separated_by_commas(self, sources: Sources, text: str) -> None:
        sources.env["MESSAGE_BUS__REDELIVERY_INTERVALS_SECONDS"] = text
        assert sources.load().message_bus.redelivery_intervals_seconds == (1, 20, 300)

    def test_a_wrong_item_is_numbered(self, sources: Sources) -> None:
        sources.env["MESSAGE_BUS__REDELIVERY_INTERVALS_SECONDS"] = "1,soon"
        assert "REDELIVERY_INTERVALS_SECONDS: item 2 must be a valid number" in sources.refusal()

    def test_what_begins_like_json_must_be_json(self, sources: Sources) -> None:
        sources.env["MESSAGE_BUS__REDELIVERY_INTERVALS_SECONDS"] = "[1,"
        assert sources.refusal().endswith("SECONDS: begins like JSON, and is not")

    def test_a_setting_that_may_be_a_text_is_not_split(self, sources: Sources) -> None:
        sources.env |= {"PAYMENTS__NOTE": "a, b", "PAYMENTS__METHODS": "card,cash", "PAYMENTS__CARD__LIMIT": "5"}
        payments = sources.load().payments
        assert (payments.note, payments.methods, payments.card) == ("a, b", ["card", "cash"], Card(limit=5))

    def test_sections_may_be_ordinary_models(self, sources: Sources) -> None:
        sources.env |= {"PLAIN__SIZE": "5", "PLAIN__LIMITS": "1,2"}
        assert sources.load().plain == Plain(size=5, limits=[1, 2])
        sources.env["PLAIN__SIZES"] = "3"
        assert sources.refusal() == "environment variable PLAIN__SIZES: no such setting; did you mean PLAIN__SIZE?"

    def test_a_level_may_be_written_in_lower_case(self, sources: Sources) -> None:
        sources.env["LOGGING__LEVEL"] = "debug"
        assert sources.load().logging.level == "DEBUG"


class TestDatabaseUrl:
    def test_it_is_required(self, sources: Sources) -> None:
        sources.toml("")
        text = "database.url is not set: give url under [database] in settings.toml, or set DATABASE__URL"
        assert sources.refusal() == text
        with pytest.raises(ConfigurationError, match=re.escape(text)):
            Settings()

    @pytest.mark.parametrize("url", ["sqlite:///./a b.db", "sqlite+aiosqlite:///./a b.db", " sqlite:///./a b.db "])
    def test_sqlite_gets_its_async_driver(self, url: str) -> None:
        settings = Settings(database={"url": url})
        assert settings.database.url.get_secret_value() == "sqlite+aiosqlite:///./a b.db"
        assert settings.database.kind == "sqlite"

    @pytest.mark.parametrize(
        "url",
        [
            "sqlite://",
            "sqlite:///",
            "sqlite:///:memory:",
            "sqlite+aiosqlite:///:memory:",
            "sqlite:///file::memory:?cache=shared&uri=true",
            "sqlite:///file:shop?mode=memory&uri=true",
        ],
    )
    def test_sqlite_in_memory_is_refused_with_the_reason_and_the_remedy(self, url: str) -> None:
        text = refusal(database={"url": url})
        assert "each connection would see another, empty database" in text
        assert "name a file" in text

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("sqlite+pysqlite:///x.db", "write sqlite+aiosqlite"),
            ("postgresql+psycopg2://u:hunter2@h/x", "write postgresql+asyncpg"),
            ("postgresql://u:hunter2@h", "names no database; one looks like postgresql+asyncpg://"),
            ("mssql:///hunter2", "names no host; one looks like mssql+aioodbc://"),
            ("oracle://u:hunter2@h/x", "names the database oracle, and mailroom knows: sqlite, postgresql, mssql"),
            ("sqlite://hunter2.db", "has two slashes where SQLite wants three"),
            ("sqlite://bob:hunter2@/x.db", "names a user, a password or a port, and SQLite has none"),
            ("hunter2", "is not a database URL; one looks like sqlite+aiosqlite:///"),
            ("sqlite://h:hunter2/x", "is not a database URL"),
            ("", "is not a database URL"),
        ],
    )
    def test_what_cannot_be_used_is_refused_without_being_shown(self, url: str, says: str) -> None:
        text = refusal(database={"url": url})
        assert text.startswith("database.url: ")
        assert says in text
        assert "hunter2" not in text

    def test_the_safe_url_hides_the_password_and_the_query(self) -> None:
        database = DatabaseSettings(url=SecretStr("sqlite:///x.db?token=hunter2"))
        assert database.safe_url == "sqlite+aiosqlite:///x.db"
        assert database.url.get_secret_value().endswith("hunter2")


class TestSecrets:
    def test_they_are_in_no_repr_and_no_dump(self, sources: Sources) -> None:
        sources.env |= {"PAYMENTS__API_KEY": "hunter2", "DATABASE__URL": "sqlite:///x.db?token=hunter2"}
        settings = sources.load()
        assert settings.payments.api_key.get_secret_value() == "hunter2"
        for text in (repr(settings), str(settings), repr(settings.database), settings.model_dump_json()):
            assert "hunter2" not in text

    def test_they_are_not_in_the_repr_of_what_was_read_either(self) -> None:
        assert "hunter2" not in repr(settings_sources.given_in_code(Settings, {"database": {"url": "hunter2"}}))

    @pytest.mark.parametrize(
        "env",
        [
            {"PAYMENTS__API_KEY": "bad hunter2"},
            {"PAYMENTS__API_KEYS": "hunter2"},
            {"PAYMENTS__BROKER_PASSWORD": "hunter2"},
            {"DATABASE__URL": "oracle://u:hunter2@h/x"},
            {"DATABASE__POOL_SIZE": "postgresql://u:hunter2@h/x"},
            {"PAYMENTS__API_KEY": "hunter2", "PAYMENTS__FEES": "[1]"},
        ],
    )
    def test_they_are_in_no_error(self, sources: Sources, env: dict[str, str]) -> None:
        sources.env = env
        with pytest.raises(ConfigurationError) as refused:
            sources.load()
        assert "hunter2" not in str(refused.value)
        assert refused.value.__context__ is None

    def test_a_rule_of_a_projects_own_is_quoted_in_one_line(self, sources: Sources) -> None:
        sources.env |= {"PAYMENTS__NOTE": "none", "PAYMENTS__METHODS": "card"}
        assert sources.refusal() == "payments: payments.methods and payments.note = none exclude each other"

    def test_a_long_value_is_cut(self, sources: Sources) -> None:
        sources.env["OUTBOX__BATCH_SIZE"] = "x" * 1000
        assert len(sources.refusal()) < 200


class TestContradictions:
    @pytest.mark.parametrize(
        ("sections", "names"),
        [
            (
                {"handler_timeout_seconds": 300},
                ["handler_timeout_seconds = 300.0 (code)", "outbox.lease_seconds = 300 "],
            ),
            (
                {"message_bus": {"retry_min_interval_seconds": 31}},
                [
                    "message_bus.retry_min_interval_seconds = 31.0 (code)",
                    "message_bus.retry_max_interval_seconds = 30 ",
                ],
            ),
            (
                {"outbox": {"backoff_max_seconds": 9}},
                ["outbox.backoff_base_seconds = 10 (default)", "outbox.backoff_max_seconds = 9.0 (code)"],
            ),
            (
                {"outbox": {"retention_days": 0.05}},
                ["outbox.retention_days = 0.05 (code)", "outbox.max_attempts = 5 (default)", "0.09 or more"],
            ),
            (
                {"message_bus": {"redelivery_intervals_seconds": [60, 700_000]}},
                ["outbox.retention_days = 7 (default)", "redelivery_intervals_seconds = [60.0, 700000.0] (code)"],
            ),
            (
                {"message_bus": {"concurrency": 14}},
                [
                    "message_bus.concurrency = 14 (code)",
                    "pool_size to 11 or more, or lower message_bus.concurrency to 13",
                ],
            ),
            (
                {"database": {**URL, "pool_size": 1, "max_overflow": 1}},
                ["database.pool_size = 1 (code)", "database.max_overflow = 1 (code)", "pool_size to 9 or more"],
            ),
        ],
    )
    def test_settings_that_contradict_each_other_are_refused_naming_both(
        self, sections: dict[str, Any], names: list[str]
    ) -> None:
        text = refusal(**sections)
        assert len(text.splitlines()) == 1
        for name in names:
            assert name in text

    @pytest.mark.parametrize(
        "sections",
        [
            {"handler_timeout_seconds": 299},
            {"message_bus": {"retry_min_interval_seconds": 30}},
            {"outbox": {"backoff_max_seconds": 10}},
            {"outbox": {"retention_days": 0.09}},
            {"outbox": {"retention_days": 0}, "message_bus": {"redelivery_intervals_seconds": [700_000]}},
            {"message_bus": {"concurrency": 13}},
            {"outbox": {"dead_letter_retention_days": 1}},
        ],
    )
    def test_at_the_bound_they_do_not_contradict(self, sections: dict[str, Any]) -> None:
        assert Settings(database=URL, **sections)

    def test_the_whole_time_of_redelivery_counts_the_relay_and_then_the_broker(self) -> None:
        settings = Settings(
            database=URL,
            outbox={"max_attempts": 3, "lease_seconds": 100, "backoff_base_seconds": 10, "backoff_max_seconds": 15},
            message_bus={"retry_limit": 2, "retry_min_interval_seconds": 1, "redelivery_intervals_seconds": [60, 600]},
            handler_timeout_seconds=50,
        )
        relay = 3 * 100 + 1.2 * (10 + 15)
        retries = 3 * 50 + 1.2 * (1 + 2)
        assert longest_redelivery_seconds(settings) == pytest.approx(relay + 3 * retries + 660)


def test_settings_are_frozen_and_every_one_is_described() -> None:
    settings = Settings(database=URL)
    with pytest.raises(ValueError, match="frozen"):
        setattr(settings.outbox, "batch_size", 3)  # noqa: B010 - mypy knows that it is frozen
    for section in (settings.database, settings.message_bus, settings.outbox, settings.health, settings.logging):
        assert [name for name, field in type(section).model_fields.items() if not field.description] == []
