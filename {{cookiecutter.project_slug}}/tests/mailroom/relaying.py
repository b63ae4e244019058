"""What tests of the relay publish, handle and start."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

from support import Deposited, effect

from mailroom import Context, Handlers, Mailroom
from mailroom.outbox.processor import OutboxProcessor


async def publish(mailroom: Mailroom, *amounts: int, key: str | None = None) -> None:
    async with mailroom.transaction() as session:
        for amount in amounts:
            mailroom.publish(session, Deposited(amount=amount), ordering_key=key)


def noting_attempts(fail_with: Callable[[int], Exception | None] = lambda amount: None) -> Handlers:
    handlers = Handlers()

    @handlers.on(Deposited)
    async def note(event: Deposited, context: Context[Any]) -> None:
        error = fail_with(event.amount)
        if error is not None:
            raise error
        effect(context, f"{event.amount} at attempt {context.attempt}")

    return handlers


@asynccontextmanager
async def started(processor: OutboxProcessor):  # type: ignore[no-untyped-def]
    await processor.start()
    try:
        yield
    finally:
        await processor.stop()
