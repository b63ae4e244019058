"""Contract P1, P3-P6: the rule over all settings, what each row of the table registers, and the words for it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailroom.errors import ConfigurationError
from mailroom.posture import (
    Posture,
    Resolved,
    as_json,
    explain,
    inbox_disabled_warning,
    outbox_disabled_notice,
    refuse,
    resolve,
)
from mailroom.settings import MessageBusSettings, Settings

PROVIDERS = st.sampled_from(["in_process", "rabbitmq", "azure_service_bus"]) | st.from_regex(
    r"[a-z_]{1,20}", fullmatch=True
)
SWITCHES = st.sampled_from([None, True, False])


def settings_of(provider: str = "in_process", outbox: bool | None = None, inbox: bool | None = None) -> Settings:
    return Settings(
        database={"url": "sqlite:///shop.db"},
        message_bus={"provider": provider, "enable_outbox": outbox, "enable_inbox": inbox},
    )


def posture_of(provider: str = "in_process", outbox: bool | None = None, inbox: bool | None = None) -> Posture:
    return resolve(settings_of(provider, outbox, inbox))


def is_refused(posture: Posture) -> bool:
    try:
        refuse(posture)
    except ConfigurationError:
        return True
    return False


@given(PROVIDERS, SWITCHES, SWITCHES)
def test_an_explicit_setting_wins_and_else_the_transport_decides(
    provider: str, outbox: bool | None, inbox: bool | None
) -> None:
    posture = posture_of(provider, outbox, inbox)
    is_broker = provider != "in_process"
    assert posture.is_broker == is_broker
    for explicit, resolved in ((outbox, posture.outbox), (inbox, posture.inbox)):
        assert resolved.enabled == (explicit if explicit is not None else is_broker)
        assert resolved.source == ("transport" if explicit is None else "code")
    assert is_refused(posture) == (is_broker and outbox is False)


@given(PROVIDERS, SWITCHES, SWITCHES)
def test_what_is_registered_follows_from_what_is_resolved(
    provider: str, outbox: bool | None, inbox: bool | None
) -> None:
    posture = posture_of(provider, outbox, inbox)
    if is_refused(posture):
        assert posture.services == ()
        return
    is_on = {
        "OutboxProcessor": posture.outbox.enabled,
        "OutboxDisabledNotice": not posture.outbox.enabled,
        "OutboxCleanup": posture.outbox.enabled or posture.inbox.enabled,
        "InboxDisabledWarning": posture.is_broker and not posture.inbox.enabled,
        "BrokerConsumer": posture.is_broker,
    }
    assert set(posture.services) == {name for name, is_there in is_on.items() if is_there}
    assert len(posture.services) == len(set(posture.services))


@pytest.mark.parametrize(
    ("provider", "outbox", "inbox", "services"),
    [
        ("in_process", None, None, {"OutboxDisabledNotice"}),
        ("in_process", None, False, {"OutboxDisabledNotice"}),
        ("in_process", False, None, {"OutboxDisabledNotice"}),
        ("in_process", False, False, {"OutboxDisabledNotice"}),
        ("in_process", None, True, {"OutboxDisabledNotice", "OutboxCleanup"}),
        ("in_process", False, True, {"OutboxDisabledNotice", "OutboxCleanup"}),
        ("in_process", True, None, {"OutboxProcessor", "OutboxCleanup"}),
        ("in_process", True, False, {"OutboxProcessor", "OutboxCleanup"}),
        ("in_process", True, True, {"OutboxProcessor", "OutboxCleanup"}),
        ("rabbitmq", None, None, {"OutboxProcessor", "OutboxCleanup", "BrokerConsumer"}),
        ("rabbitmq", True, True, {"OutboxProcessor", "OutboxCleanup", "BrokerConsumer"}),
        ("rabbitmq", None, False, {"OutboxProcessor", "OutboxCleanup", "BrokerConsumer", "InboxDisabledWarning"}),
        ("rabbitmq", True, False, {"OutboxProcessor", "OutboxCleanup", "BrokerConsumer", "InboxDisabledWarning"}),
        ("rabbitmq", False, None, set()),
    ],
)
def test_each_row_of_the_table(provider: str, outbox: bool | None, inbox: bool | None, services: set[str]) -> None:
    assert set(posture_of(provider, outbox, inbox).services) == services


def test_no_section_at_all_means_in_process() -> None:
    posture = resolve(Settings(database={"url": "sqlite:///shop.db"}))
    assert as_json(posture) == {
        "provider": "in_process",
        "database": "sqlite",
        "data_sources": {"default": "sqlite"},
        "inbox_source": "default",
        "outbox": {"enabled": False, "source": "transport"},
        "inbox": {"enabled": False, "source": "transport"},
        "services": ["OutboxDisabledNotice"],
    }


def test_each_value_knows_the_file_or_variable_that_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text('database.url = "sqlite:///x.db"\nmessage_bus.enable_inbox = false\n')
    posture = resolve(Settings.load(env={"MESSAGE_BUS__ENABLE_OUTBOX": "true"}))
    assert posture.outbox == Resolved(True, "environment variable MESSAGE_BUS__ENABLE_OUTBOX")
    assert posture.inbox == Resolved(False, "settings.toml")
    assert any("environment variable MESSAGE_BUS__ENABLE_OUTBOX" in line for line in explain(posture))


def test_a_blank_variable_is_not_an_explicit_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text('database.url = "sqlite:///x.db"\nmessage_bus.provider = "rabbitmq"\n')
    posture = resolve(Settings.load(env={"MESSAGE_BUS__ENABLE_OUTBOX": " ", "MESSAGE_BUS__ENABLE_INBOX": ""}))
    assert (posture.outbox, posture.inbox) == (Resolved(True, "transport"), Resolved(True, "transport"))


def test_a_projects_own_default_is_explicit_too() -> None:
    class ShopSettings(Settings):
        message_bus: MessageBusSettings = MessageBusSettings(enable_outbox=True)

    assert resolve(ShopSettings(database={"url": "sqlite:///x.db"})).outbox == Resolved(True, "code")


@pytest.mark.parametrize("inbox", [None, True, False])
def test_a_broker_without_the_outbox_is_refused_with_mechanism_consequence_and_fix(inbox: bool | None) -> None:
    posture = posture_of("rabbitmq", outbox=False, inbox=inbox)
    with pytest.raises(ConfigurationError) as refused:
        refuse(posture)
    text = str(refused.value)
    for fact in (
        "message_bus.enable_outbox = false (code)",
        "message_bus.provider = rabbitmq",
        "OutboxProcessor publishes",
        "nothing would ever be published",
        "lost silently",
        "remove message_bus.enable_outbox",
    ):
        assert fact in text
    assert text in explain(posture)[-1]
    assert as_json(posture)["services"] == []


class TestWords:
    def test_the_outbox_notice_says_all_that_being_off_costs(self) -> None:
        text = outbox_disabled_notice(posture_of())
        for fact in (
            "message_bus.enable_outbox is unset, and the transport is in_process",
            "no rows are written",
            "OutboxProcessor and OutboxCleanup do not run",
            "an event whose handler fails is not retried",
            "a crash between the commit and the dispatch loses the event",
            "message_bus.enable_outbox = true brings it back",
            "no migration is needed",
        ):
            assert fact in text
        assert "\n" not in text

    def test_the_outbox_notice_does_not_deny_a_cleanup_that_runs(self) -> None:
        text = outbox_disabled_notice(posture_of(outbox=False, inbox=True))
        assert "OutboxProcessor does not run" in text
        assert "OutboxCleanup" not in text
        assert "message_bus.enable_outbox = false, code" in text

    def test_the_inbox_warning_says_that_it_is_deliberate_and_what_it_costs(self) -> None:
        text = inbox_disabled_warning(posture_of("rabbitmq", inbox=False))
        for fact in (
            "deliberate",
            "message_bus.enable_inbox = false, code",
            "each redelivery will repeat the side effects",
            "remove message_bus.enable_inbox",
            "the table inbox_messages is already there",
        ):
            assert fact in text
        assert "\n" not in text

    @pytest.mark.parametrize(
        ("choice", "says"),
        [
            ({}, "loses the event"),
            ({}, "nothing to recognise"),
            ({"outbox": True}, "Local handlers have not run yet when commit returns"),
            ({"outbox": True}, "message_bus.enable_inbox = true prevents that"),
            ({"inbox": True}, "helps only where an event is handed in twice"),
            ({"outbox": True, "inbox": True}, "once for each message id"),
            ({"provider": "rabbitmq"}, "everything else a handler does happens at least once"),
            ({"provider": "rabbitmq", "inbox": False}, "a deliberate opt-out"),
            ({"provider": "rabbitmq", "outbox": False}, "refuses to start"),
        ],
    )
    def test_the_explanation_says_what_it_costs(self, choice: dict[str, Any], says: str) -> None:
        posture = posture_of(**choice)
        text = "\n".join(explain(posture))
        assert says in text
        assert all(service in text for service in posture.services)
        assert ("helps only" in text) == (choice == {"inbox": True})
        assert "exactly once" not in text
