"""Contract R8: what was kept long enough goes, in batches; dead letters stay unless asked for (F9)."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert
from support import Compose, Deposited, inbox_ids, rows

from mailroom import Mailroom
from mailroom.outbox import cleanup
from mailroom.outbox.cleanup import Purged
from mailroom.persistence.tables import InboxMessage, OutboxMessage

NOW = datetime.now(UTC)
OLD = NOW - timedelta(days=8)
RECENT = NOW - timedelta(days=6)


async def fill(mailroom: Mailroom, count: int = 1, **values: Any) -> None:
    row = {
        "kind": "integration",
        "event_type": "bank.deposited",
        "event_version": 1,
        "payload": "{}",
        "headers": "{}",
        "occurred_on": OLD,
        "available_on": OLD,
        **values,
    }
    async with mailroom.database.connection() as connection:
        await connection.execute(insert(OutboxMessage), [{**row, "message_id": uuid4()} for _ in range(count)])


async def record(mailroom: Mailroom, processed_on: datetime, message_id: UUID | None = None) -> None:
    row = {"message_id": message_id or uuid4(), "event_type": "bank.deposited", "processed_on": processed_on}
    async with mailroom.database.connection() as connection:
        await connection.execute(insert(InboxMessage).values(row))


async def test_processed_and_inbox_rows_go_after_their_retention(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True)
    await fill(mailroom, processed_on=OLD)
    await fill(mailroom, processed_on=RECENT)
    await record(mailroom, OLD)
    await record(mailroom, RECENT)
    assert await mailroom.cleanup.run_once() == Purged(processed=1, inbox=1)
    assert [row.processed_on for row in await rows(mailroom)] == [RECENT]
    assert len(await inbox_ids(mailroom)) == 1


async def test_pending_rows_and_dead_letters_survive_however_old(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True)
    await fill(mailroom)
    await fill(mailroom, dead_lettered_on=OLD)
    assert await mailroom.cleanup.run_once() == Purged()
    assert len(await rows(mailroom)) == 2


async def test_an_inbox_row_stays_while_its_message_may_still_be_handed_out(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True, inbox_on=True)
    await fill(mailroom)
    (pending,) = await rows(mailroom)
    await record(mailroom, OLD, message_id=pending.message_id)
    await record(mailroom, OLD)
    assert await mailroom.cleanup.run_once() == Purged(inbox=1)
    assert await inbox_ids(mailroom) == [pending.message_id]


async def test_dead_letters_go_only_when_asked_for(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True, outbox={"dead_letter_retention_days": 7})
    await fill(mailroom, dead_lettered_on=OLD)
    await fill(mailroom, dead_lettered_on=RECENT)
    assert await mailroom.cleanup.run_once() == Purged(dead_lettered=1)
    assert [row.dead_lettered_on for row in await rows(mailroom)] == [RECENT]


async def test_zero_days_keeps_for_ever(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True, outbox={"retention_days": 0})
    await fill(mailroom, processed_on=OLD)
    assert await mailroom.cleanup.run_once() == Purged()


async def test_it_deletes_batch_after_batch_until_one_comes_back_short(
    compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "BATCH_SIZE", 10)
    mailroom = await compose(outbox_on=True)
    await fill(mailroom, 25, processed_on=OLD)
    assert await mailroom.cleanup.run_once() == Purged(processed=25)


@pytest.mark.locks
async def test_purging_beside_producers_and_relays_locks_nobody_out_and_loses_nothing(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True, events=[Deposited])
    await fill(mailroom, 3_000, processed_on=OLD)

    async def produce() -> None:
        for amount in range(20):
            await mailroom.publish(Deposited(amount=amount))

    purged, *_ = await asyncio.gather(mailroom.cleanup.run_once(), produce(), produce(), mailroom.drain())
    await mailroom.drain()
    assert purged == Purged(processed=3_000)
    left = await rows(mailroom)
    assert len(left) == 40
    assert all(row.processed_on for row in left)


async def test_it_starts_at_once_and_stops_twice(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True)
    await fill(mailroom, processed_on=OLD)
    await mailroom.cleanup.stop()
    await mailroom.cleanup.start()
    while await rows(mailroom):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await mailroom.cleanup.stop()
    await mailroom.cleanup.stop()
