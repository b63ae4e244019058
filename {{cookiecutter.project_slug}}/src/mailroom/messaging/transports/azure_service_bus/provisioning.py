"""What the service wants in the namespace, compared with what is there; made, and cleared of what nobody wants."""

from collections.abc import Iterable
from dataclasses import replace

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from mailroom.errors import NotAllowedError
from mailroom.messaging.transports.azure_service_bus import emulator
from mailroom.messaging.transports.azure_service_bus.intake import Intake
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.messaging.transports.azure_service_bus.refusals import EntityMissingError
from mailroom.messaging.transports.azure_service_bus.topology import Topology, said, taken_by
from mailroom.messaging.transports.base import Part, PartState, Progress, Survey, ignore

TOPIC, QUEUE, SUBSCRIPTION, RULE = "topic", "queue", "subscription", "rule"


class ServiceBusProvisioning:
    """For operators, and for `doctor`. Whoever may not manage the namespace still learns whether the queue is there."""

    def __init__(self, topology: Topology, namespace: Namespace, *, compares: bool) -> None:
        """`compares`: whether a queue has to have all properties that the settings ask for, or only those without which
        nothing works."""
        self._topology = topology
        self._namespace = namespace
        self._properties = topology.queue_properties if compares else topology.needed_properties

    def wanted(self) -> tuple[Part, ...]:
        topology = self._topology
        topic = Part(kind=TOPIC, name=topology.topic)
        if not topology.events:
            return (topic,)
        properties = {name: said(value) for name, value in topology.queue_properties.items()}
        return (
            topic,
            Part(kind=QUEUE, name=topology.queue, arguments=properties),
            Part(kind=SUBSCRIPTION, name=topology.subscription, arguments={"forward_to": topology.queue}),
            *(Part(kind=RULE, name=name, arguments={"label": event}) for name, event in topology.rules.items()),
        )

    async def survey(self) -> Survey:
        try:
            async with self._namespace.administration() as administration:
                return await self._compared(administration)
        except NotAllowedError as error:
            return await self._looked_at(error)

    async def apply(self) -> Survey:
        """Raises ConfigurationError if something differs, or if this identity may not make it."""
        async with self._namespace.administration() as administration:
            before = await self._compared(administration)
            await self._topology.declare(administration)
        return before

    async def prune(self, unwanted: Iterable[Part], progress: Progress = ignore) -> None:
        async with self._namespace.administration() as administration:
            for done, part in enumerate(unwanted, start=1):
                await self._topology.remove_rule(administration, part.name)
                progress(done)

    def export(self) -> str:
        """The same for Microsoft's emulator, as the text of its configuration file. Asks nobody."""
        return emulator.configuration(self._topology)

    async def _compared(self, administration: ServiceBusAdministrationClient) -> Survey:
        topology = self._topology
        rules = await topology.rules_there(administration)
        problems = {
            TOPIC: await topology.problem_of_topic(administration),
            QUEUE: await topology.problem_of_queue(administration, self._properties),
            SUBSCRIPTION: await topology.problem_of_subscription(administration),
        }
        found = [
            _with_rule(part, rules) if part.kind == RULE else _with_problem(part, problems[part.kind])
            for part in self.wanted()
        ]
        unwanted = [
            Part(kind=RULE, name=name, arguments={"label": event} if event else {}, state=PartState.UNWANTED)
            for name, event in rules.items()
            if event not in topology.events
        ]
        return Survey(parts=(*found, *unwanted))

    async def _looked_at(self, refusal: NotAllowedError) -> Survey:
        note = f"which topic, subscription and rules there are cannot be checked: {refusal.found}"
        parts = self.wanted()
        if any(part.kind == QUEUE for part in parts):
            state = PartState.PRESENT if await self._has_queue() else PartState.MISSING
            parts = tuple(replace(part, state=state) if part.kind == QUEUE else part for part in parts)
        return Survey(parts=parts, notes=(note,))

    async def _has_queue(self) -> bool:
        intake = Intake(self._namespace, self._topology.queue)
        try:
            await intake.open()
        except EntityMissingError:
            return False
        finally:
            await intake.close()
        return True


async def reach(namespace: Namespace, topology: Topology) -> None:
    """Raises TransportUnavailableError if the namespace does not let this service in. What is missing is no matter."""
    intake = Intake(namespace, topology.queue)
    try:
        await intake.open()
    except EntityMissingError:
        pass
    finally:
        await intake.close()


def _with_problem(part: Part, problem: str | None) -> Part:
    if problem is None:
        return replace(part, state=PartState.PRESENT)
    if not problem:
        return replace(part, state=PartState.MISSING)
    return replace(part, state=PartState.DIFFERENT, problem=f"the {part.kind} {part.name}: {problem}")


def _with_rule(part: Part, rules: dict[str, str]) -> Part:
    if part.arguments["label"] in rules.values():
        return replace(part, state=PartState.PRESENT)
    taken = taken_by(part.name, rules)
    if taken is None:
        return replace(part, state=PartState.MISSING)
    return replace(part, state=PartState.DIFFERENT, problem=f"the rule {part.name} takes {taken} instead")
