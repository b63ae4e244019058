"""Contract A1, F17: what an operator's handles promise to a program: pages, batches, and rows that are held."""

from datetime import timedelta
from typing import Any

import pytest
import support
from support import Compose, Deposited, Renamed

from mailroom import Mailroom
from mailroom.outbox import administration, inspection
from mailroom.outbox.inspection import Group
from mailroom.outbox.leases import Leases
from mailroom.outbox.selection import EVERYTHING, Selection, State


@pytest.fixture
async def mailroom(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> Mailroom:
    """Seven pending rows; statements and batches that hold two."""
    mailroom = await compose(outbox_on=True)
    for amount in range(7):
        await mailroom.publish(Deposited(amount=amount))
    monkeypatch.setattr(administration, "BATCH_SIZE", 2)
    monkeypatch.setattr(inspection, "IDS_AT_ONCE", 2)
    return mailroom


async def ids(mailroom: Mailroom, **selection: Any) -> list[int]:
    return [entry.id for entry in await mailroom.outbox.entries(Selection(**selection))]


async def test_pages_follow_each_other_without_gaps_whatever_the_selection(mailroom: Mailroom) -> None:
    for selection in (EVERYTHING, Selection(ids=range(1, 8)), Selection(state=State.PENDING)):
        seen: list[int] = []
        while page := await mailroom.outbox.entries(selection, limit=3, before_id=min(seen, default=None)):
            seen += [entry.id for entry in page]
        assert seen == [7, 6, 5, 4, 3, 2, 1]


async def test_lists_never_load_payloads_and_one_row_only_on_demand(mailroom: Mailroom) -> None:
    assert not hasattr((await mailroom.outbox.entries())[0], "payload")
    shown = await mailroom.outbox.entry(7)
    assert shown is not None
    assert shown.payload is None
    shown = await mailroom.outbox.entry(7, with_payload=True)
    assert shown is not None
    assert '"amount":6' in str(shown.payload).replace(" ", "")
    assert await mailroom.outbox.entry(8) is None


async def test_selected_rows_are_counted_by_event_and_state(mailroom: Mailroom) -> None:
    await mailroom.publish(Renamed(new_name="x"))
    await Leases(mailroom.database, lease_seconds=60).claim(Deposited.kind, 3)
    assert await mailroom.outbox.groups(Selection(ids=range(1, 100))) == [
        Group(event_type="bank.deposited", state=State.LEASED, rows=3),
        Group(event_type="bank.deposited", state=State.PENDING, rows=4),
        Group(event_type="bank.renamed", state=State.PENDING, rows=1),
    ]


@pytest.mark.parametrize("selection", [EVERYTHING, Selection(ids=[*range(1, 8), 1, 2])])
async def test_every_batch_is_told_and_every_row_changed_once(mailroom: Mailroom, selection: Selection) -> None:
    told: list[int] = []
    changed = await mailroom.outbox.replay(selection, told.append)
    assert (changed.rows, changed.held, changed.missing) == (7, (), ())
    assert told == [2, 4, 6, 7]


async def test_rows_that_arrive_meanwhile_are_not_meant(mailroom: Mailroom) -> None:
    batches = []
    async for batch in mailroom.outbox._batches([]):
        batches.append(batch)
        await mailroom.publish(Deposited(amount=1))
    assert batches == [[1, 2], [3, 4], [5, 6], [7]]


async def test_what_progress_raises_ends_the_work_and_finished_batches_stay_done(mailroom: Mailroom) -> None:
    def stop(done: int) -> None:
        if done == 4:
            raise KeyError

    with pytest.raises(KeyError):
        await mailroom.outbox.discard(EVERYTHING, stop)
    assert await ids(mailroom) == [7, 6, 5]


@pytest.mark.parametrize("change", ["replay", "discard"])
@pytest.mark.parametrize("selection", [EVERYTHING, Selection(ids=range(1, 8)), Selection(state=State.PENDING)])
async def test_held_rows_are_left_alone_and_named(mailroom: Mailroom, change: str, selection: Selection) -> None:
    held = await Leases(mailroom.database, lease_seconds=60).claim(Deposited.kind, 3)
    changed = await getattr(mailroom.outbox, change)(selection)
    assert (changed.rows, changed.held) == (4, tuple(claimed.id for claimed in held))
    assert sorted(await ids(mailroom, state=State.LEASED)) == [1, 2, 3]


async def test_a_row_that_a_relay_claims_once_it_is_replayed_counts_as_replayed(mailroom: Mailroom) -> None:
    """Selecting held rows after the change would call it left alone."""
    leases = Leases(mailroom.database, lease_seconds=60)
    batches = mailroom.outbox._batches

    async def claimed_afterwards(conditions: Any) -> Any:
        async for batch in batches(conditions):
            yield batch
            await leases.claim(Deposited.kind, 7)

    mailroom.outbox._batches = claimed_afterwards  # type: ignore[method-assign]
    changed = await mailroom.outbox.replay(Selection(ids=[1, 2]))
    assert (changed.rows, changed.held) == (2, ())
    assert len(await ids(mailroom, state=State.LEASED)) == 7


@pytest.mark.parametrize("change", ["replay", "discard"])
async def test_a_row_that_a_relay_claims_before_its_turn_is_left_alone(mailroom: Mailroom, change: str) -> None:
    leases = Leases(mailroom.database, lease_seconds=60)
    batches = mailroom.outbox._batches

    async def claimed_before(conditions: Any) -> Any:
        async for batch in batches(conditions):
            await leases.claim(Deposited.kind, 1)
            yield batch

    mailroom.outbox._batches = claimed_before  # type: ignore[method-assign]
    changed = await getattr(mailroom.outbox, change)(Selection(ids=[1, 2]))
    assert (changed.rows, changed.held) == (1, (1,))
    assert await ids(mailroom, state=State.LEASED) == [1]


async def test_a_purge_goes_on_batch_after_batch(mailroom: Mailroom) -> None:
    await support.change_rows(mailroom, processed_on=mailroom.database.claims.later(-100))
    told: list[int] = []
    age = timedelta(seconds=50)
    assert await mailroom.outbox.purgeable(age) == 7
    assert await mailroom.outbox.purge(age, progress=told.append) == 7
    assert told == [2, 4, 6, 7]
