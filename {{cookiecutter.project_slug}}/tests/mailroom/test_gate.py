"""Contract R6: a row that may have killed its relay is handled while nothing else is handled in this process."""

import asyncio
from datetime import UTC, datetime

from support import Broker, Compose, Deposited, done, noting

from mailroom.events import Kind
from mailroom.messaging.attempts import Attempts, Handled, Journey
from mailroom.outbox.gate import Gate
from mailroom.serialization import encode


async def turns() -> None:
    """Lets every task go on for as long as it can without waiting for somebody else."""
    for _ in range(20):
        await asyncio.sleep(0)


class Alone:
    """One row that wants to be alone, and stays so until it is told to leave."""

    def __init__(self, gate: Gate) -> None:
        self.is_alone = False
        self._done = asyncio.Event()
        self._task = asyncio.create_task(self._be(gate))

    async def _be(self, gate: Gate) -> None:
        async with gate.alone():
            self.is_alone = True
            await self._done.wait()

    async def leave(self) -> None:
        self._done.set()
        await self._task


async def test_who_wants_to_be_alone_waits_until_everybody_has_left() -> None:
    gate = Gate()
    await gate.enter()
    gate.add(1)
    alone = Alone(gate)
    await turns()
    assert not alone.is_alone
    gate.leave()
    await turns()
    assert not alone.is_alone
    gate.leave()
    await turns()
    assert alone.is_alone
    await alone.leave()


async def test_while_one_is_alone_nobody_enters() -> None:
    gate = Gate()
    alone = Alone(gate)
    await turns()
    entering = asyncio.create_task(gate.enter())
    second = Alone(gate)
    await turns()
    assert alone.is_alone
    assert not entering.done()
    assert not second.is_alone
    await alone.leave()
    await entering
    gate.leave()
    await second.leave()


async def test_lanes_whose_rows_are_handled_here_share_one_gate_and_a_broker_has_its_own(compose: Compose) -> None:
    local = await compose(outbox_on=True)
    domain, integration = (local.processor._lanes[kind] for kind in (Kind.DOMAIN, Kind.INTEGRATION))
    assert domain._gate is integration._gate

    remote = await compose(message_bus={"provider": "stand_in"}, transports={"stand_in": Broker()})
    domain, integration = (remote.processor._lanes[kind] for kind in (Kind.DOMAIN, Kind.INTEGRATION))
    assert domain._gate is not integration._gate


async def test_a_message_of_a_broker_that_waits_at_the_gate_takes_no_slot_from_rows_that_are_inside(
    compose: Compose,
) -> None:
    """Else the rows could never get out, and whoever wants to be alone would wait for them for ever."""
    mailroom = await compose(
        noting(), message_bus={"provider": "stand_in", "concurrency": 1}, transports={"stand_in": Broker()}
    )
    consumer = mailroom.consumer
    await consumer.gate.enter()
    alone = Alone(consumer.gate)
    await turns()

    async def pause(seconds: float) -> bool:
        return True

    handling = asyncio.create_task(
        Attempts(consumer, mailroom.settings.message_bus).run(
            encode(Deposited(amount=1)),
            Journey(first_seen=datetime.now(UTC)),
            alone=False,
            is_ours=lambda: True,
            pause=pause,
        )
    )
    await turns()
    assert not consumer.slots.locked()
    async with consumer.slots:
        consumer.gate.leave()
        await turns()
    assert alone.is_alone
    await alone.leave()
    assert await handling == Handled()
    await done(mailroom, "1")
