"""Contract A1, P4, P6: what the commands print for people and for machines, and with which code they exit."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import support
from click.testing import Result
from support import Deposited, rows
from typer.testing import CliRunner

from mailroom import Context, DomainEvent, Handlers, Mailroom, Settings
from mailroom.cli import create_cli
from mailroom.errors import ConfigurationError
from mailroom.events import Event
from mailroom.outbox.leases import Leases
from mailroom.persistence.tables import OutboxMessage

MIGRATIONS = Path(__file__).parents[2] / "migrations"
Run = Callable[..., Result]

handlers = Handlers()


@handlers.on(Deposited)
async def note(event: Deposited, context: Context[Any]) -> None:
    if event.amount < 0:
        raise ValueError("a deposit below zero")
    support.effect(context, str(event.amount))


class Renumbered(DomainEvent, name="bank.renumbered", version=3, aliases=["bank.moved"]):
    number: str


class Bank:
    """A project of which only the command line is looked at."""

    def __init__(self, url: str) -> None:
        self.sections: dict[str, Any] = {"database": {"url": url}, "message_bus": {"enable_outbox": True}}
        self.handlers = [handlers]
        self.events: list[type[Event]] = []
        self.app = create_cli("bank", settings=self.settings, mailroom=self.compose)

    def settings(self) -> Settings:
        return Settings(**self.sections)

    def compose(self) -> Mailroom:
        return Mailroom(self.settings(), handlers=self.handlers, events=self.events, command="bank")

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(self.app, arguments, env={"COLUMNS": "200"})

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def do(self, work: Callable[[Mailroom], Any]) -> Any:
        async def run() -> Any:
            mailroom = self.compose()
            try:
                return await work(mailroom)
            finally:
                await mailroom.close()

        return asyncio.run(run())


@pytest.fixture
def empty(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bank:
    """The database does not exist yet."""
    monkeypatch.chdir(tmp_path)
    versions = tmp_path / "versions"
    versions.mkdir()
    (versions / "0001_initial.py").write_text((MIGRATIONS / "versions" / "0001_initial.py").read_text())
    (tmp_path / "alembic.ini").write_text(
        f"[alembic]\nscript_location = {MIGRATIONS}\nversion_locations = {versions}\npath_separator = os\n"
        "[mailroom]\nmodels = mailroom.persistence.tables:MailroomBase.metadata\n"
    )
    return Bank(database_url)


@pytest.fixture
def bank(empty: Bank) -> Bank:
    """The database is migrated, and has the tables of the handlers."""
    assert empty("db", "upgrade").exit_code == 0
    empty.do(support.create_tables)
    return empty


def deposit(*amounts: int) -> Callable[[Mailroom], Any]:
    async def work(mailroom: Mailroom) -> None:
        for amount in amounts:
            await mailroom.publish(Deposited(amount=amount))

    return work


class TestPosture:
    def test_it_shows_what_runs_and_where_each_value_comes_from(self, empty: Bank) -> None:
        shown = empty("posture").stdout
        for fact in ("outbox", "inbox", "in_process", "sqlite", "transport", "OutboxProcessor"):
            assert fact in shown

    def test_it_gives_the_same_to_a_machine(self, empty: Bank) -> None:
        answer = empty.json("posture")
        assert list(answer) == ["provider", "database", "outbox", "inbox", "services"]
        assert (answer["provider"], answer["database"]) == ("in_process", "sqlite")
        assert answer["outbox"]["enabled"] is True
        assert answer["inbox"] == {"enabled": False, "source": "transport"}
        assert set(answer["services"]) == {"OutboxProcessor", "OutboxCleanup"}

    def test_it_says_what_else_would_refuse_to_start(self, empty: Bank) -> None:
        empty.sections["message_bus"] = {"provider": "pigeons"}
        result = empty("posture")
        assert result.exit_code == 0
        assert "refuses to start: message_bus.provider is 'pigeons'" in result.stdout

    def test_it_still_explains_what_would_refuse_to_start(self, empty: Bank) -> None:
        empty.sections["message_bus"] = {"provider": "pigeons", "enable_outbox": False}
        result = empty("posture")
        assert result.exit_code == 0
        assert "message_bus.enable_outbox" in result.stdout
        assert empty("db", "upgrade").exit_code == 0

    @pytest.mark.parametrize(
        "command",
        [
            ["run"],
            ["events"],
            ["outbox", "stats"],
            ["outbox", "list"],
            ["outbox", "show", "1"],
            ["outbox", "replay", "1"],
            ["outbox", "drain"],
        ],
    )
    def test_what_composes_a_host_is_refused_without_a_traceback(self, empty: Bank, command: list[str]) -> None:
        empty.sections["message_bus"] = {"provider": "pigeons", "enable_outbox": False}
        result = empty(*command)
        assert result.exit_code == 2
        assert "message_bus.enable_outbox" in result.stderr
        assert "Traceback" not in result.output

    def test_settings_that_cannot_be_read_are_a_message_and_exit_2(self) -> None:
        def unreadable() -> Settings:
            raise ConfigurationError("no settings.toml here")

        app = create_cli("bank", settings=unreadable, mailroom=lambda: Mailroom(unreadable()))
        result = CliRunner().invoke(app, ["posture"])
        assert (result.exit_code, result.stderr.strip()) == (2, "error: no settings.toml here")


class TestEvents:
    def test_it_shows_each_event_and_what_handles_it(self, empty: Bank) -> None:
        shown = empty("events").stdout
        for fact in ("bank.deposited", "integration", "test_cli.note"):
            assert fact in shown

    def test_it_gives_the_same_to_a_machine_by_name(self, empty: Bank) -> None:
        empty.events = [Renumbered]
        assert empty.json("events") == [
            {
                "name": "bank.deposited",
                "version": 1,
                "kind": "integration",
                "aliases": [],
                "handlers": [f"{note.__module__}.note"],
            },
            {"name": "bank.renumbered", "version": 3, "kind": "domain", "aliases": ["bank.moved"], "handlers": []},
        ]
        assert "none" in empty("events").stdout

    def test_a_service_without_events_says_how_to_get_some(self, empty: Bank) -> None:
        empty.handlers = []
        result = empty("events")
        assert (result.exit_code, "no event is known" in result.stdout) == (0, True)
        assert empty.json("events") == []


class TestDb:
    def test_up_down_and_up_again(self, empty: Bank) -> None:
        assert "not migrated" in empty("db", "current").stdout
        assert "at 0001" in empty("db", "upgrade").stdout
        assert empty.json("db", "current") == {"current": ["0001"], "heads": ["0001"]}
        assert "no migration" in empty("db", "downgrade", "base").stdout
        assert "at 0001" in empty("db", "upgrade").stdout

    def test_check_tells_by_its_exit_code_whether_models_and_database_agree(self, empty: Bank) -> None:
        empty("db", "upgrade")
        assert (empty("db", "check").exit_code, empty.json("db", "check")) == (0, {"differences": []})

        async def drop_an_index(mailroom: Mailroom) -> None:
            async with mailroom.database.engine.begin() as connection:
                await connection.exec_driver_sql("DROP INDEX ix_inbox_messages_processed_on")

        empty.do(drop_an_index)
        result = empty("db", "check")
        assert result.exit_code == 1
        assert "ix_inbox_messages_processed_on" in result.stdout
        assert len(empty.json("db", "check")["differences"]) == 1

    def test_revision_writes_the_next_migration(self, empty: Bank, tmp_path: Path) -> None:
        empty("db", "upgrade")
        result = empty("db", "revision", "-m", "nothing yet", "--empty")
        assert result.exit_code == 0
        (written,) = [path for path in (tmp_path / "versions").glob("*.py") if path.name != "0001_initial.py"]
        assert "bank db upgrade" in result.stdout
        assert str(written) in result.stdout.replace("\n", "")
        assert 'None = "0001"' in written.read_text(), "in double quotes: it was formatted"

    def test_a_revision_that_is_not_there_is_a_message_and_exit_1(self, empty: Bank) -> None:
        result = empty("db", "upgrade", "9999")
        assert result.exit_code == 1
        assert "9999" in result.stderr
        assert "Traceback" not in result.output

    def test_without_alembic_ini_it_says_where_it_looked(self, empty: Bank, tmp_path: Path) -> None:
        (tmp_path / "alembic.ini").unlink()
        result = empty("db", "upgrade")
        assert result.exit_code == 2
        assert "alembic.ini" in result.stderr


class TestOutbox:
    def test_a_database_that_is_not_migrated_is_a_message_with_the_command_to_run(self, empty: Bank) -> None:
        result = empty("outbox", "stats")
        assert result.exit_code == 1
        assert "bank db upgrade" in result.stderr

    def test_stats_counts_both_tables(self, bank: Bank) -> None:
        bank.do(deposit(1, -1))
        bank("outbox", "drain")
        answer = bank.json("outbox", "stats")
        assert answer.pop("oldest_pending_seconds") >= 0
        assert answer == {"pending": 1, "leased": 0, "retrying": 1, "processed": 1, "dead_lettered": 0, "inbox": 0}
        assert "dead lettered" in bank("outbox", "stats").stdout

    def test_list_shows_rows_without_payloads_newest_first_in_pages(self, bank: Bank) -> None:
        bank.do(deposit(*range(5)))
        newest = bank.json("outbox", "list", "--limit", "3")
        assert [row["id"] for row in newest] == [5, 4, 3]
        assert [row["id"] for row in bank.json("outbox", "list", "--before", "3")] == [2, 1]
        assert "payload" not in newest[0]
        assert bank.json("outbox", "list", "--state", "processed") == []
        bank.sections["outbox"] = {"max_attempts": 1}
        bank.do(deposit(-1))
        bank("outbox", "drain")
        (dead,) = bank.json("outbox", "list", "--state", "dead-lettered")
        assert (dead["id"], dead["last_error"]) == (6, "ValueError: a deposit below zero")
        assert {row["state"] for row in bank.json("outbox", "list", "--state", "processed")} == {"processed"}
        assert "bank.deposited" in bank("outbox", "list").stdout

    def test_list_filters_by_event_key_and_age(self, bank: Bank) -> None:
        async def raise_some(mailroom: Mailroom) -> None:
            await mailroom.publish(Deposited(amount=1), ordering_key="anna")
            await mailroom.publish(Deposited(amount=2), ordering_key="bert")
            await mailroom.publish(support.Renamed(new_name="x"))
            an_hour_ago = mailroom.database.claims.later(-3_600)
            await support.change_rows(mailroom, OutboxMessage.id != 1, occurred_on=an_hour_ago)

        bank.do(raise_some)

        def listed(*filters: str) -> list[int]:
            return [row["id"] for row in bank.json("outbox", "list", *filters)]

        assert listed("--event-type", "bank.deposited") == [2, 1]
        assert listed("--ordering-key", "anna") == [1]
        assert listed("--older-than", "30m") == [3, 2]
        assert listed("--older-than", "2h") == []
        assert listed("--older-than", "30m", "--event-type", "bank.deposited", "--state", "pending") == [2]
        assert "--before 2" in bank("outbox", "list", "--limit", "2").stdout

    @pytest.mark.parametrize("age", ["2", "h", "-1h", "1 hour", "9" * 400 + "d"])
    def test_an_age_that_is_none_is_refused_with_an_example(self, bank: Bank, age: str) -> None:
        result = bank("outbox", "list", f"--older-than={age}")
        assert result.exit_code == 2
        assert "15m" in result.stderr

    def test_show_has_everything_but_the_payload_which_is_shown_on_demand(self, bank: Bank) -> None:
        bank.do(deposit(41))
        shown = bank.json("outbox", "show", "1")
        assert (shown["id"], shown["state"], shown["locked_until"]) == (1, "pending", None)
        assert set(shown) == {column.key for column in OutboxMessage.__table__.columns} - {"payload"} | {"state"}
        assert "amount" not in bank("outbox", "show", "1").stdout
        assert json.loads(bank.json("outbox", "show", "1", "--payload")["payload"])["amount"] == 41
        assert "41" in bank("outbox", "show", "1", "--payload").stdout

    def test_showing_a_row_that_is_not_there_is_a_message_and_exit_1(self, bank: Bank) -> None:
        result = bank("outbox", "show", "7")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "no row 7" in result.stderr

    def test_what_is_stored_is_shown_as_it_is(self, bank: Bank) -> None:
        bank.do(deposit(1))
        bank.do(lambda mailroom: support.change_rows(mailroom, last_error="[red]odd[/]"))
        assert "[red]odd[/]" in bank("outbox", "list").stdout

    def test_drain_sends_what_is_due_and_says_what_is_left(self, bank: Bank) -> None:
        bank.do(deposit(1, 2))
        result = bank("outbox", "drain")
        assert (result.exit_code, result.stdout.strip()) == (0, "2 rows handed out; 0 pending, 0 dead-lettered")
        bank.do(deposit(-1))
        assert bank.json("outbox", "drain") == {"handed_out": 1, "pending": 1, "dead_lettered": 0}
        assert bank("outbox", "drain").exit_code == 1

    def test_replay_makes_rows_due_again_and_leaves_held_ones_alone(self, bank: Bank) -> None:
        bank.do(deposit(1, 2, 3))
        bank.do(lambda mailroom: Leases(mailroom.database, lease_seconds=60).claim(support.Deposited.kind, 1))
        answer = bank.json("outbox", "replay", "1", "2", "9")
        assert answer == {"replayed": [2], "leased": [1], "missing": [9]}
        result = bank("outbox", "replay", "1", "9")
        assert result.exit_code == 1
        assert "a relay holds them: 1" in result.stdout
        assert "not there: 9" in result.stdout

    def test_replaying_all_dead_letters_gives_them_their_attempts_back(self, bank: Bank) -> None:
        bank.sections["outbox"] = {"max_attempts": 1}
        bank.do(deposit(-1, -2, 3))
        bank("outbox", "drain")
        assert bank.json("outbox", "stats")["dead_lettered"] == 2
        assert "2 rows are due again" in bank("outbox", "replay", "--dead-letters").stdout
        assert [(row.attempts, row.dead_lettered_on) for row in bank.do(rows)][:2] == [(0, None)] * 2

    @pytest.mark.parametrize("arguments", [[], ["1", "--dead-letters"]])
    def test_replay_wants_either_ids_or_all_dead_letters(self, bank: Bank, arguments: list[str]) -> None:
        result = bank("outbox", "replay", *arguments)
        assert result.exit_code == 2
        assert "--dead-letters" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_ends_with_0_on_a_signal(bank: Bank, number: signal.Signals, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"from test_cli import Bank\nbank = Bank({bank.sections['database']['url']!r})\nbank.app(['run'])\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, str(program)], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("running" in line for line in lines)
        process.send_signal(number)
        told = list(lines)
        assert process.wait() == 0
    assert any("stopping" in line for line in told)
    assert any("stopped" in line for line in told)


@pytest.mark.parametrize("group", [[], ["db"], ["outbox"]])
def test_every_command_has_a_help_text(empty: Bank, group: list[str]) -> None:
    result = empty(*group, "--help")
    assert result.exit_code == 0
    commands = [line for line in result.stdout.splitlines() if line.startswith("│ ") and "--" not in line]
    assert commands
    for line in commands:
        assert len(line.strip("│ ").split(maxsplit=1)) == 2, line
