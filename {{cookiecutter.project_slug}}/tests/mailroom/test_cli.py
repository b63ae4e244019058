"""Contract A1, P4, P6: what the commands print for people and for machines, and with which code they exit."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import support
from click.testing import Result
from sqlalchemy import event
from sqlalchemy.schema import DropIndex
from support import Deposited, rows
from typer.testing import CliRunner

from mailroom import Context, DomainEvent, Handlers, Mailroom, Settings
from mailroom.cli import create_cli, output
from mailroom.errors import ConfigurationError
from mailroom.events import Event
from mailroom.outbox import administration
from mailroom.outbox.leases import Leases
from mailroom.persistence import steps
from mailroom.persistence.tables import InboxMessage, OutboxMessage

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
        mailroom = Mailroom(self.settings(), handlers=self.handlers, events=self.events, command="bank")
        self.mailroom_made(mailroom)
        return mailroom

    def mailroom_made(self, mailroom: Mailroom) -> None:
        """For tests that want to be there."""

    def __call__(self, *arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(self.app, arguments, env={"COLUMNS": "200"}, input=answer)

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


LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def interrupt_at_the_first_commit(mailroom: Mailroom) -> None:
    """Presses Ctrl-C while the first batch is being committed."""

    def press(_connection: object) -> None:
        signal.raise_signal(signal.SIGINT)

    event.listen(mailroom.database.engine.sync_engine, "commit", press, once=True)


class TestPosture:
    def test_it_shows_what_runs_and_where_each_value_comes_from(self, empty: Bank) -> None:
        shown = empty("posture").stdout
        for fact in ("outbox", "inbox", "in_process", empty.settings().database.kind, "transport", "OutboxProcessor"):
            assert fact in shown

    def test_it_gives_the_same_to_a_machine(self, empty: Bank) -> None:
        answer = empty.json("posture")
        assert list(answer) == ["provider", "database", "data_sources", "inbox_source", "outbox", "inbox", "services"]
        assert (answer["provider"], answer["database"]) == ("in_process", empty.settings().database.kind)
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
            ["outbox", "replay", "1", "--yes"],
            ["outbox", "discard", "1", "--yes"],
            ["outbox", "purge", "--yes"],
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


class TestRun:
    def test_a_health_port_in_use_is_one_line_that_names_the_setting_and_exit_2(
        self, bank: Bank, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        with socket.create_server(("127.0.0.1", 0)) as other:
            bank.sections["health"] = {"port": other.getsockname()[1]}
            result = bank("run")
        assert result.exit_code == 2
        (said,) = result.stderr.splitlines()
        assert said.startswith("error: health.port = ")
        assert "Traceback" not in result.output


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
        assert "no migration" in empty("db", "downgrade", "-1").stdout

    @pytest.mark.parametrize("command", [["check"], ["revision", "-m", "more"]], ids=" ".join)
    def test_what_compares_says_that_the_database_has_to_be_migrated_first(
        self, empty: Bank, command: list[str]
    ) -> None:
        result = empty("db", *command)
        assert result.exit_code == 1
        assert "the database is not migrated" in result.stderr
        assert "run: bank db upgrade" in result.stderr

    def test_a_migration_without_a_name_is_refused(self, bank: Bank, tmp_path: Path) -> None:
        result = bank("db", "revision", "-m", " ")
        assert (result.exit_code, "say what it does" in result.stderr) == (2, True)
        assert [path.name for path in (tmp_path / "versions").glob("*.py")] == ["0001_initial.py"]

    @pytest.mark.reflection
    def test_check_tells_by_its_exit_code_whether_models_and_database_agree(self, empty: Bank) -> None:
        empty("db", "upgrade")
        assert (empty("db", "check").exit_code, empty.json("db", "check")) == (0, {"differences": []})

        (processed_on,) = [index for index in InboxMessage.__table__.indexes if not index.unique]  # type: ignore[attr-defined]

        async def drop_an_index(mailroom: Mailroom) -> None:
            async with mailroom.database.engine.begin() as connection:
                await connection.execute(DropIndex(processed_on))

        empty.do(drop_an_index)
        result = empty("db", "check")
        assert result.exit_code == 1
        assert "ix_inbox_messages_processed_on" in result.stdout
        assert len(empty.json("db", "check")["differences"]) == 1

    def test_the_framework_has_nothing_to_write_where_every_step_is_taken(self, bank: Bank, tmp_path: Path) -> None:
        result = bank("db", "revision", "--framework")
        assert (result.exit_code, "nothing to write" in result.stdout) == (0, True)
        assert [path.name for path in (tmp_path / "versions").glob("*.py")] == ["0001_initial.py"]
        assert bank("db", "revision", "--framework", "-m", "ours").exit_code == 2

    def test_the_framework_writes_what_a_newer_version_of_it_needs(
        self, empty: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Models are not compared before: the difference would go into a migration of the project's own."""
        empty("db", "upgrade")
        nothing = {"upgrade": lambda: None, "downgrade": lambda: None}
        monkeypatch.setattr(steps, "STEPS", (steps.Step(number=999, what="change nothing", **nothing),))
        for command in (["check"], ["revision", "-m", "more"]):
            refused = empty("db", *command)
            assert refused.exit_code == 1
            assert "run: bank db revision --framework" in refused.stderr

        assert "bank db upgrade" in empty("db", "revision", "--framework").stdout
        written = (tmp_path / "versions" / "mailroom_999_change_nothing.py").read_text(encoding="utf-8")
        assert 'None = "0001"' in written, "in double quotes: it was formatted"
        assert "at mailroom_999" in empty("db", "upgrade").stdout
        assert empty("db", "check").exit_code == 0

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

    def test_drain_logs_each_failure_with_its_facts_beside_what_it_answers(self, bank: Bank) -> None:
        bank.sections |= {"logging": {"format": "json"}, "outbox": {"max_attempts": 1}}
        bank.do(deposit(-1))
        result = bank("outbox", "drain")
        assert result.stdout.strip() == "1 row handed out; 0 pending, 1 dead-lettered"
        (line,) = result.stderr.splitlines()
        told = json.loads(line)
        assert (told["event"], told["event_type"], told["attempt"]) == ("message dead-lettered", "bank.deposited", 1)
        assert told["message_id"] == bank.json("outbox", "show", "1")["message_id"]
        assert told["reason"] == "ValueError: a deposit below zero"


@pytest.fixture
def dead(bank: Bank) -> Bank:
    """Rows 1 and 2 are dead letters, row 3 was processed, row 4 is pending."""
    bank.sections["outbox"] = {"max_attempts": 1}
    bank.do(deposit(-1, -2, 3))
    bank("outbox", "drain")
    bank.do(deposit(4))
    return bank


def hold(bank: Bank) -> None:
    """A relay claims what is due."""
    bank.do(lambda mailroom: Leases(mailroom.database, lease_seconds=60).claim(Deposited.kind, 9))


def states(bank: Bank) -> dict[int, str]:
    return {row["id"]: row["state"] for row in bank.json("outbox", "list")}


class TestReplayAndDiscard:
    def test_replaying_all_means_dead_letters_and_gives_them_their_attempts_back(self, dead: Bank) -> None:
        assert dead("outbox", "replay", "--all", "--yes").stdout.strip() == "2 rows replayed"
        assert [(row.attempts, row.dead_lettered_on) for row in dead.do(rows)][:2] == [(0, None)] * 2
        assert list(states(dead).values()) == ["pending", "processed", "pending", "pending"]

    def test_discarding_all_deletes_dead_letters_and_nothing_else(self, dead: Bank) -> None:
        assert dead.json("outbox", "discard", "--all", "--yes") == {"discarded": 2, "held": [], "missing": []}
        assert states(dead) == {4: "pending", 3: "processed"}

    def test_a_filter_means_dead_letters_unless_a_state_is_given(self, dead: Bank) -> None:
        filtered = ("--event-type", "bank.deposited", "--yes")
        assert dead.json("outbox", "discard", *filtered, "--state", "processed")["discarded"] == 1
        assert dead.json("outbox", "replay", *filtered)["replayed"] == 2
        assert dead.json("outbox", "discard", "--older-than", "1h", "--yes")["discarded"] == 0
        assert states(dead) == {4: "pending", 2: "pending", 1: "pending"}

    def test_ids_mean_rows_in_any_state(self, dead: Bank) -> None:
        assert dead.json("outbox", "replay", "3", "--yes") == {"replayed": 1, "held": [], "missing": []}
        assert dead.json("outbox", "discard", "3", "4", "4", "--yes")["discarded"] == 2
        assert states(dead) == {2: "dead-lettered", 1: "dead-lettered"}

    @pytest.mark.parametrize(("verb", "done"), [("replay", "replayed"), ("discard", "discarded")])
    def test_rows_that_a_relay_holds_are_left_alone_and_reported(self, dead: Bank, verb: str, done: str) -> None:
        hold(dead)
        assert dead.json("outbox", verb, "1", "4", "9", "--yes") == {done: 1, "held": [4], "missing": [9]}
        result = dead("outbox", verb, "4", "9")
        assert result.exit_code == 1
        assert "a relay holds them: 4" in result.stdout
        assert "not there: 9" in result.stdout
        assert dead.json("outbox", verb, "--state", "pending", "--yes")["held"] == [4]
        assert states(dead)[4] == "leased"

    @pytest.mark.parametrize("command", [("replay", "--all"), ("discard", "--all"), ("discard", "1"), ("purge",)])
    def test_without_a_terminal_nothing_is_changed_unless_told_so(self, dead: Bank, command: tuple[str, ...]) -> None:
        dead.do(lambda mailroom: support.change_rows(mailroom, OutboxMessage.id == 3, processed_on=LONG_AGO))
        before = states(dead)
        result = dead("outbox", *command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--yes" in result.stderr
        assert states(dead) == before

    @pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, [4, 3]), ("n", 1, [4, 3, 2, 1])])
    def test_it_shows_what_it_would_change_and_asks(
        self, dead: Bank, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: list[int]
    ) -> None:
        monkeypatch.setattr(output, "has_terminal", lambda: True)
        result = dead("outbox", "discard", "--all", answer=answer)
        assert result.exit_code == code
        assert re.search(r"bank.deposited\W+dead-lettered\W+2", result.stderr)
        assert "Discard 2 rows?" in result.stderr
        assert list(states(dead)) == left

    @pytest.mark.parametrize("verb", ["replay", "discard"])
    @pytest.mark.parametrize(
        "arguments", [[], ["1", "--all"], ["--all", "--state", "processed"], ["1", "--event-type", "x"]]
    )
    def test_rows_are_named_in_one_way(self, bank: Bank, verb: str, arguments: list[str]) -> None:
        result = bank("outbox", verb, *arguments)
        assert result.exit_code == 2
        assert "--all" in result.stderr

    @pytest.mark.parametrize("verb", ["replay", "discard"])
    def test_leased_rows_cannot_be_asked_for(self, bank: Bank, verb: str) -> None:
        result = bank("outbox", verb, "--state", "leased", "--yes")
        assert (result.exit_code, "left alone" in result.stderr) == (2, True)

    @pytest.mark.parametrize("command", ["replay --all", "discard --all", "purge --dead-letters --older-than-days 0"])
    def test_nothing_to_do_asks_nobody(self, bank: Bank, command: str) -> None:
        result = bank("outbox", *command.split())
        assert result.exit_code == 0
        assert result.stdout.startswith("0 rows")

    def test_an_interrupt_ends_it_between_two_batches_and_says_how_many_are_done(
        self, bank: Bank, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bank.do(deposit(*range(10)))
        monkeypatch.setattr(administration, "BATCH_SIZE", 1)
        monkeypatch.setattr(bank, "mailroom_made", interrupt_at_the_first_commit)
        result = bank("outbox", "discard", "--state", "pending", "--yes", "--json")
        assert result.exit_code == 130
        answer = json.loads(result.stdout)
        assert answer == {"discarded": 10 - len(states(bank)), "interrupted": True}
        assert 0 < answer["discarded"] < 10
        said = bank("outbox", "discard", "--state", "pending", "--yes")
        assert re.search(r"interrupted: \d rows? discarded; the others are as they were", said.stdout)


class TestPurge:
    def test_it_deletes_processed_rows_after_the_retention(self, dead: Bank) -> None:
        dead.do(lambda mailroom: support.change_rows(mailroom, OutboxMessage.id == 3, processed_on=LONG_AGO))
        assert dead("outbox", "purge", "--yes").stdout.strip() == "1 row purged"
        assert sorted(states(dead)) == [1, 2, 4]

    def test_younger_rows_stay_unless_an_age_is_given(self, dead: Bank) -> None:
        assert dead.json("outbox", "purge", "--yes") == {"purged": 0}
        assert dead.json("outbox", "purge", "--older-than-days", "0", "--yes") == {"purged": 1}
        assert sorted(states(dead)) == [1, 2, 4]

    def test_dead_letters_go_only_if_told_so_and_pending_rows_never(self, dead: Bank) -> None:
        assert dead.json("outbox", "purge", "--older-than-days", "0", "--dead-letters", "--yes") == {"purged": 3}
        assert states(dead) == {4: "pending"}

    def test_where_rows_are_kept_for_ever_it_wants_an_age(self, bank: Bank) -> None:
        bank.sections["outbox"] = {"retention_days": 0}
        result = bank("outbox", "purge", "--yes")
        assert (result.exit_code, "--older-than-days" in result.stderr) == (2, True)


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


@pytest.mark.parametrize(
    ("shell", "typed"),
    [
        ("bash", {"COMP_WORDS": "bank outbox re", "COMP_CWORD": "2"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "bank outbox re"}),
    ],
)
def test_a_shell_is_told_what_comes_next(empty: Bank, shell: str, typed: dict[str, str]) -> None:
    result = CliRunner().invoke(empty.app, [], env={"_BANK_COMPLETE": f"complete_{shell}", **typed})
    assert result.exit_code == 0
    assert "replay" in result.stdout
    assert "discard" not in result.stdout


@pytest.mark.parametrize("group", [[], ["db"], ["outbox"]])
def test_every_command_has_a_help_text(empty: Bank, group: list[str]) -> None:
    result = empty(*group, "--help")
    assert result.exit_code == 0
    commands = [line for line in result.stdout.splitlines() if line.startswith("│ ") and "--" not in line]
    assert commands
    for line in commands:
        assert len(line.strip("│ ").split(maxsplit=1)) == 2, line


OF_THE_DATABASE = ("upgrade", "downgrade", "revision", "check", "current")
OF_THE_OUTBOX = ("stats", "list", "show", "replay", "discard", "purge", "drain")


@pytest.mark.parametrize(
    "command",
    [
        *("run", "posture", "doctor", "events"),
        *(f"db {one}" for one in OF_THE_DATABASE),
        *(f"outbox {one}" for one in OF_THE_OUTBOX),
    ],
)
def test_help_ends_with_examples_that_can_be_copied(empty: Bank, command: str) -> None:
    result = empty(*command.split(), "--help")
    assert result.exit_code == 0
    _, examples = result.stdout.split("Examples:")
    assert f"bank {command}" in examples
