"""What the service wants on its broker, compared with what is there; made, and cleared of what nobody wants."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mailroom.errors import ConfigurationError, TransportUnavailableError
from mailroom.messaging.transports.base import Part, PartState, Progress, Survey, ignore
from mailroom.messaging.transports.rabbitmq.link import Link
from mailroom.messaging.transports.rabbitmq.management import SETTING, Binding, Management
from mailroom.messaging.transports.rabbitmq.topology import Topology
from mailroom.settings import RabbitMQSettings

EXCHANGE, QUEUE, BINDING = "exchange", "queue", "binding"


class RabbitMQProvisioning:
    """For operators, and for `doctor`. AMQP tells what is there, and the management API which bindings there are."""

    def __init__(self, settings: RabbitMQSettings, topology: Topology, link: Link) -> None:
        self._topology = topology
        self._link = link
        self._management = Management(settings) if settings.management_url else None
        self._compares = settings.declare_topology
        self._virtual_host = settings.virtual_host

    def wanted(self) -> tuple[Part, ...]:
        topology = self._topology
        exchange = Part(kind=EXCHANGE, name=topology.exchange, arguments={"type": "topic"})
        if not topology.bindings:
            return (exchange,)
        return (
            exchange,
            *(Part(kind=QUEUE, name=name, arguments=arguments) for name, arguments in topology.queues.items()),
            *(Part(kind=BINDING, name=name) for name in topology.bindings),
        )

    async def survey(self) -> Survey:
        """A queue of the same name is compared where the service would declare it: that is how the broker compares."""
        notes: list[str] = []
        found = [await self._looked_at(part) for part in self.wanted() if part.kind != BINDING]
        bound = await self._bound(notes)
        found += [_looked_up(part, bound) for part in self.wanted() if part.kind == BINDING]
        unwanted = [
            Part(kind=BINDING, name=one.name, arguments=one.arguments, state=PartState.UNWANTED)
            for one in bound or ()
            if one.name not in self._topology.bindings
        ]
        return Survey(parts=(*found, *unwanted), notes=tuple(notes))

    async def apply(self) -> Survey:
        before = await self.survey()
        await self._topology.declare(self._link)
        return before

    def export(self) -> str:
        """As definitions for `rabbitmqctl import_definitions`, or the management page. Asks no broker."""
        return definitions(self._topology, virtual_host=self._virtual_host)

    async def prune(self, unwanted: Iterable[Part], progress: Progress = ignore) -> None:
        for done, part in enumerate(unwanted, start=1):
            await self._topology.unbind(self._link, part.name, part.arguments)
            progress(done)

    async def _looked_at(self, part: Part) -> Part:
        topology, is_queue = self._topology, part.kind == QUEUE
        has = topology.has_queue(self._link, part.name) if is_queue else topology.has_exchange(self._link)
        if not await has:
            return replace(part, state=PartState.MISSING)
        if self._compares:
            try:
                if is_queue:
                    await topology.declare_queue(self._link, part.name)
                else:
                    await topology.declare_exchange(self._link)
            except ConfigurationError as error:
                return replace(part, state=PartState.DIFFERENT, problem=str(error))
        return replace(part, state=PartState.PRESENT)

    async def _bound(self, notes: list[str]) -> list[Binding] | None:
        """None if nobody knows."""
        if self._management is None:
            notes.append(f"which bindings there are cannot be checked: {SETTING} is not set")
            return None
        try:
            return await self._management.bindings(self._topology.exchange, self._topology.queue)
        except TransportUnavailableError as error:
            notes.append(f"which bindings there are cannot be checked: {error}")
            return None


def _looked_up(part: Part, bound: Iterable[Binding] | None) -> Part:
    if bound is None:
        return part
    is_there = any(one.name == part.name for one in bound)
    return replace(part, state=PartState.PRESENT if is_there else PartState.MISSING)


def definitions(topology: Topology, *, virtual_host: str) -> str:
    """The text of the file."""
    here = {"vhost": virtual_host, "durable": True, "auto_delete": False}
    document = {
        "exchanges": [{"name": topology.exchange, "type": "topic", "internal": False, **here, "arguments": {}}],
        "queues": [{"name": name, **here, "arguments": arguments} for name, arguments in _queues(topology).items()],
        "bindings": [
            {
                "source": topology.exchange,
                "vhost": virtual_host,
                "destination": topology.queue,
                "destination_type": "queue",
                "routing_key": event,
                "arguments": {},
            }
            for event in sorted(topology.bindings)
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _queues(topology: Topology) -> dict[str, dict[str, Any]]:
    """None where nothing is consumed."""
    return topology.queues if topology.bindings else {}
