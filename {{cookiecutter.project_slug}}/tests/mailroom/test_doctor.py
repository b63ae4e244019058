"""Contract A1, P4: what `doctor` finds, what it says to do, and with which code it exits."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import support
from click.testing import Result
from databases import out_of_reach
from support import Deposited
from typer.testing import CliRunner

from mailroom import Context, Handlers, Mailroom, Settings, __version__, doctor
from mailroom.cli import create_cli
from mailroom.doctor import Status
from mailroom.errors import ConfigurationError
from mailroom.outbox.leases import Leases
from mailroom.persistence import schema
from mailroom.persistence.database import create_engine
from mailroom.posture import named
from mailroom.testing.plugin import fresh_database

RENAME = {
    "sqlite": "ALTER TABLE outbox_messages RENAME COLUMN attempts TO tries",
    "sqlserver": "EXEC sp_rename 'outbox_messages.attempts', 'tries', 'COLUMN'",
}


class Patient:
    """A service of which only the settings and the database are looked at."""

    def __init__(self, url: str) -> None:
        self.handlers = Handlers()
        self.sections: dict[str, Any] = {"database": {"url": url}, "message_bus": {"enable_outbox": True}}

    def settings(self) -> Settings:
        return Settings(**self.sections)

    def compose(self) -> Mailroom:
        return Mailroom(self.settings(), handlers=[self.handlers], events=[Deposited], command="bank")

    async def examined(self, **how: Any) -> dict[str, doctor.Check]:
        return {check.name: check async for check in doctor.examine(self.settings, command="bank", **how)}

    def __call__(self, *arguments: str) -> Result:
        app = create_cli("bank", settings=self.settings, mailroom=self.compose)
        return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def empty(database_url: str, alembic_ini: Path, monkeypatch: pytest.MonkeyPatch) -> Patient:
    """The database does not exist yet."""
    monkeypatch.chdir(alembic_ini.parent)
    return Patient(database_url)


@pytest.fixture
def second_url(database_url: str, tmp_path: Path) -> Iterator[str]:
    """Another empty database of the same kind."""
    (tmp_path / "second").mkdir()
    with fresh_database(Settings(database={"url": database_url}).database.kind, tmp_path / "second") as url:
        yield url


async def migrate(patient: Patient) -> None:
    engine = create_engine(patient.settings().database)
    await schema.upgrade(engine)
    await engine.dispose()


@pytest.fixture
async def patient(empty: Patient) -> Patient:
    await migrate(empty)
    return empty


async def deposit(patient: Patient, *amounts: int, **values: Any) -> None:
    """Stores rows, and moves them through time or state."""
    mailroom = patient.compose()
    for amount in amounts:
        await mailroom.publish(Deposited(amount=amount))
    if values:
        await support.change_rows(mailroom, **values)
    await mailroom.close()


def statuses(checks: dict[str, doctor.Check]) -> dict[str, Status]:
    return {name: check.status for name, check in checks.items() if check.status is not Status.OK}


class TestExamination:
    async def test_a_healthy_service_has_nothing_to_do(self, patient: Patient) -> None:
        await deposit(patient, 1)
        checks = await patient.examined()
        assert statuses(checks) == {}
        assert list(checks) == [
            "version",
            "settings",
            "posture",
            "database",
            "schema",
            "tables",
            "pending",
            "dead letters",
            "stale leases",
            "clock",
        ]
        assert all(check.remedy is None for check in checks.values())

    @pytest.mark.parametrize(
        ("commit", "status"),
        [
            (f"v{__version__}", Status.OK),
            (f"v{__version__}-3-g0123456", Status.OK),
            ("0123456", Status.OK),
            ("v99.0.0", Status.TO_DO),
        ],
    )
    def test_the_version_is_the_one_that_the_answers_file_names(
        self, patient: Patient, commit: str, status: Status
    ) -> None:
        """Where that names a release: between two of them nobody has said what the next one is called."""
        Path(".copier-answers.yml").write_text(f"# Read by copier.\n_commit: '{commit}'\n", encoding="utf-8")
        checks = asyncio.run(patient.examined())
        assert checks["version"].status is status
        assert f"mailroom {__version__}" in checks["version"].found

    async def test_settings_that_cannot_be_read_are_wrong_and_end_the_examination(self) -> None:
        def unreadable() -> Settings:
            raise ConfigurationError("no settings.toml here")

        *_, check = [check async for check in doctor.examine(unreadable, command="bank")]
        assert (check.name, check.status, check.found) == ("settings", Status.WRONG, "no settings.toml here")

    async def test_a_refused_posture_is_wrong_and_the_rest_is_looked_at_all_the_same(self, patient: Patient) -> None:
        patient.sections["message_bus"] = {"provider": "pigeons", "enable_outbox": False}
        checks = await patient.examined()
        assert statuses(checks) == {"posture": Status.WRONG}
        assert "message_bus.enable_outbox" in checks["posture"].found
        assert "clock" in checks

    async def test_a_database_that_cannot_be_reached_ends_the_examination(
        self, patient: Patient, database_url: str
    ) -> None:
        patient.sections["database"] = {"url": out_of_reach(database_url)}
        checks = await patient.examined()
        assert list(checks)[-1] == "database"
        assert statuses(checks) == {"database": Status.TO_DO}
        assert "cannot be used" in checks["database"].found
        assert "DATABASE__URL" not in checks["database"].found
        assert "DATABASE__URL" in str(checks["database"].remedy)

    async def test_a_database_that_is_not_migrated_is_told_the_command(self, empty: Patient) -> None:
        checks = await empty.examined()
        assert statuses(checks) == {"schema": Status.TO_DO, "tables": Status.TO_DO}
        assert checks["schema"].found.endswith("it is not migrated, and this code needs 0001")
        assert checks["schema"].remedy == "run: bank db upgrade"
        assert "outbox_messages" in checks["tables"].found
        assert checks["tables"].remedy == "run: bank db upgrade"

    async def test_a_driver_that_cannot_be_loaded_is_told_where_it_comes_from(
        self, patient: Patient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mailroom.persistence.engines.find_spec", lambda name: None)
        checks = await patient.examined()
        assert statuses(checks) == {"database": Status.WRONG}
        assert "copier update" not in checks["database"].found
        assert "copier update" in str(checks["database"].remedy)

    async def test_a_source_without_migrations_is_told_the_command(self, patient: Patient, second_url: str) -> None:
        patient.sections["data_sources"] = {"billing": {"url": second_url}}
        schema_of_billing = (await patient.examined())[named("schema", "billing")]
        assert "has no migrations" in schema_of_billing.found
        assert "db init billing" in str(schema_of_billing.remedy)

    async def test_migrations_that_are_named_and_not_there_are_wrong(
        self, patient: Patient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(schema.INI_VARIABLE, "elsewhere.ini")
        checks = await patient.examined()
        assert statuses(checks) == {"schema": Status.WRONG}
        assert "elsewhere.ini, and there is no such file" in checks["schema"].found
        assert checks["schema"].remedy == "name the alembic.ini of the project"

    async def test_tables_that_have_lost_a_column_are_something_to_do(self, patient: Patient) -> None:
        mailroom = patient.compose()
        async with mailroom.database.engine.begin() as connection:
            await connection.exec_driver_sql(RENAME.get(mailroom.database.kind, RENAME["sqlite"]))
        await mailroom.close()
        checks = await patient.examined()
        assert statuses(checks) == {"rows": Status.TO_DO}
        assert "attempts" in checks["rows"].found

    async def test_rows_that_have_waited_for_long_are_overdue(self, patient: Patient) -> None:
        await deposit(patient, 1, 2, available_on=datetime.now(UTC) - timedelta(seconds=90))
        checks = await patient.examined()
        assert statuses(checks) == {"pending": Status.TO_DO}
        assert "2 pending" in checks["pending"].found
        assert "bank run" in str(checks["pending"].remedy)

    async def test_rows_from_a_time_when_the_outbox_was_on_want_to_be_drained(self, patient: Patient) -> None:
        await deposit(patient, 1)
        patient.sections["message_bus"] = {}
        checks = await patient.examined()
        assert statuses(checks) == {"pending": Status.TO_DO}
        assert checks["pending"].remedy == "run: bank outbox drain"

    async def test_dead_letters_want_to_be_looked_at(self, patient: Patient) -> None:
        await deposit(patient, 1, 2, dead_lettered_on=datetime.now(UTC))
        checks = await patient.examined()
        assert statuses(checks) == {"dead letters": Status.TO_DO}
        assert checks["dead letters"].found == "2"
        assert "bank outbox list --state dead-lettered" in str(checks["dead letters"].remedy)

    @pytest.mark.parametrize(("bus", "remedy"), [({"enable_outbox": True}, "bank run"), ({}, "bank outbox drain")])
    async def test_a_lease_that_ran_out_is_stale_and_one_that_holds_is_not(
        self, patient: Patient, bus: dict[str, Any], remedy: str
    ) -> None:
        await deposit(patient, 1)
        mailroom = patient.compose()
        await Leases(mailroom.database, lease_seconds=60).claim(Deposited.kind, 1)
        assert "stale leases" not in statuses(await patient.examined())
        await support.expire_leases(mailroom)
        await mailroom.close()
        patient.sections["message_bus"] = bus
        checks = await patient.examined()
        assert checks["stale leases"].status is Status.TO_DO
        assert remedy in str(checks["stale leases"].remedy)

    @pytest.mark.parametrize(("seconds", "words"), [(60, "behind this"), (-60, "ahead of this")])
    async def test_clocks_that_differ_are_something_to_do(self, patient: Patient, seconds: int, words: str) -> None:
        checks = await patient.examined(now=lambda: datetime.now(UTC) + timedelta(seconds=seconds))
        assert statuses(checks) == {"clock": Status.TO_DO}
        assert words in checks["clock"].found

    async def test_a_slow_answer_is_no_difference_of_clocks(self, patient: Patient) -> None:
        asked_then_answered = iter([datetime.now(UTC) - timedelta(minutes=1), datetime.now(UTC) + timedelta(minutes=1)])
        assert statuses(await patient.examined(now=lambda: next(asked_then_answered))) == {}


class TestCommand:
    """Not in an event loop, as the commands bring their own."""

    @pytest.fixture
    def migrated(self, empty: Patient) -> Patient:
        asyncio.run(migrate(empty))
        return empty

    def test_all_is_well_is_exit_0(self, migrated: Patient) -> None:
        result = migrated()
        assert result.exit_code == 0
        for fact in ("settings", "stale leases", "clock", "service", "all is well"):
            assert fact in result.stdout

    def test_something_to_do_is_exit_1(self, migrated: Patient) -> None:
        asyncio.run(deposit(migrated, 1, dead_lettered_on=datetime.now(UTC)))
        result = migrated()
        assert result.exit_code == 1
        assert "outbox list --state dead-lettered" in " ".join(result.stdout.split())
        assert "all is well" not in result.stdout

    def test_it_gives_the_same_to_a_machine(self, empty: Patient) -> None:
        result = empty("--json")
        answer = json.loads(result.stdout)
        assert (result.exit_code, answer["healthy"]) == (1, False)
        (tables,) = [check for check in answer["checks"] if check["name"] == "tables"]
        assert tables == {
            "name": "tables",
            "status": "to do",
            "found": "missing: inbox_messages, outbox_messages",
            "remedy": "run: bank db upgrade",
        }

    def test_what_is_and_what_to_do_have_columns_of_their_own(self, empty: Patient, database_url: str) -> None:
        empty.sections["database"] = {"url": out_of_reach(database_url)}
        (line,) = [line for line in empty().stdout.splitlines() if line.startswith("│ database")]
        _, _, _, found, remedy, _ = line.split("│")
        assert found.strip()
        assert remedy.strip()

    def test_a_refused_posture_is_exit_2_without_a_traceback(self, migrated: Patient) -> None:
        migrated.sections["message_bus"] = {"provider": "pigeons", "enable_outbox": False}
        result = migrated("--json")
        assert result.exit_code == 2
        assert "message_bus.enable_outbox" in result.stdout
        assert "Traceback" not in result.output

    def test_settings_that_cannot_work_are_exit_2(self, migrated: Patient) -> None:
        migrated.sections["outbox"] = {"lease_seconds": 1}
        result = migrated()
        assert result.exit_code == 2
        assert "lease_seconds" in result.stdout

    def test_a_handler_that_may_outlive_the_lease_is_exit_2(self, migrated: Patient) -> None:
        @migrated.handlers.on(Deposited, timeout_seconds=999)
        async def slow(event: Deposited, context: Context[Any]) -> None: ...

        result = migrated("--json")
        assert result.exit_code == 2
        assert json.loads(result.stdout)["checks"][-1]["name"] == "service"
