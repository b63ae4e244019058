"""What the logs say: one event per line, which message it is about, and no payload (contract A1)."""

import json
import logging
from typing import Any, Literal
from uuid import uuid4

import pytest
import structlog
from sqlalchemy import insert
from support import Compose, Deposited, Effect, rows

from mailroom import Context, Handlers
from mailroom.log import configure_logging, get_logger
from mailroom.messaging.consumer import Outcome
from mailroom.serialization import encode
from mailroom.settings import LoggingSettings

SECRET = "a-private-account"


@pytest.mark.parametrize("shape", ["json", "console"])
def test_logs_are_one_event_per_line_with_their_facts(
    shape: Literal["json", "console"], capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(LoggingSettings(format=shape))
    get_logger("mailroom.test").info("message handled", message_id="m-1", attempt=2)
    get_logger("mailroom.test").debug("not shown")
    (line,) = capsys.readouterr().err.splitlines()
    if shape == "json":
        told = json.loads(line)
        assert told.pop("timestamp").endswith("Z")
        assert told == {
            "event": "message handled",
            "level": "info",
            "logger": "mailroom.test",
            "message_id": "m-1",
            "attempt": 2,
        }
    else:
        assert all(fact in line for fact in ("message handled", "info", "m-1"))


async def test_a_fact_that_is_named_like_one_of_the_records_own_fails_nothing(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    handlers = Handlers()

    @handlers.on(Deposited)
    async def bind(event: Deposited, context: Context[Any]) -> None:
        structlog.contextvars.bind_contextvars(name="anna", module="orders")

    mailroom = await compose(handlers, inbox_on=True)
    message = encode(Deposited(amount=1))
    with structlog.contextvars.bound_contextvars(name=None, module=None):
        outcomes = [await mailroom.consumer.consume(message, 1) for _ in range(2)]
    assert outcomes == [Outcome.HANDLED, Outcome.DUPLICATE]
    (record,) = [record for record in caplog.records if record.getMessage() == "message duplicate"]
    assert (record.name, record.name_, record.module_) == ("mailroom.messaging.consumer", "anna", "orders")


async def test_whatever_a_handler_logs_says_which_message_it_is_about(
    compose: Compose, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(LoggingSettings(format="json"))
    handlers = Handlers()

    @handlers.on(Deposited)
    async def handle(event: Deposited, context: Context[Any]) -> None:
        logging.getLogger("bank").info("by logging")
        structlog.get_logger("bank").info("by structlog")

    mailroom = await compose(handlers, outbox_on=True)
    event = Deposited(amount=1)
    await mailroom.publish(event)
    await mailroom.drain()
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    by_handler = {line["event"]: line for line in told if line["logger"] == "bank"}
    assert by_handler.keys() == {"by logging", "by structlog"}
    for line in by_handler.values():
        assert (line["message_id"], line["event_type"], line["attempt"]) == (
            str(event.message_id),
            "bank.deposited",
            1,
        )


@pytest.mark.parametrize("outbox_on", [True, False])
async def test_no_payload_gets_into_the_logs_or_into_the_reason_of_a_failure(
    outbox_on: bool, compose: Compose, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(LoggingSettings(format="json", level="DEBUG"))
    handlers = Handlers()

    @handlers.on(Deposited)
    async def handle(event: Deposited, context: Context[Any]) -> None:
        values = {"message_id": context.message_id, "what": event.account, "account_id": uuid4()}
        await context.session.execute(insert(Effect).values(values))

    mailroom = await compose(handlers, outbox_on=outbox_on)
    async with mailroom.transaction() as session:
        mailroom.publish(session, Deposited(amount=1, account=SECRET))
    await mailroom.drain()
    told = capsys.readouterr().err
    assert "FOREIGN KEY" in told.upper()
    assert SECRET not in told
    assert all(SECRET not in (row.last_error or "") for row in await rows(mailroom))


async def test_no_payload_gets_into_the_error_of_a_commit_that_cannot_store_it(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True)
    event = Deposited(amount=1, account=SECRET)
    await mailroom.publish(event)
    with pytest.raises(Exception, match=r"(?i)unique") as refused:
        await mailroom.publish(event)
    assert SECRET not in str(refused.value)
