"""What `doctor` says about the broker: there, complete, wanted, and what was given up (contract A1)."""

from collections.abc import AsyncIterator

from mailroom.checks import Check, Status
from mailroom.errors import TransportUnavailableError
from mailroom.messaging.transports.base import DeadLetters, Part, PartState, Provisioning, Survey
from mailroom.messaging.transports.rabbitmq.answers import asking
from mailroom.messaging.transports.rabbitmq.link import Link
from mailroom.messaging.transports.rabbitmq.topology import Topology
from mailroom.settings import RabbitMQSettings

THERE = (PartState.PRESENT, PartState.DIFFERENT)


class Examination:
    """Yields each check as it is made; what cannot be looked at, since an earlier check failed, is left out."""

    def __init__(
        self,
        settings: RabbitMQSettings,
        topology: Topology,
        link: Link,
        provisioning: Provisioning,
        dead_letters: DeadLetters,
    ) -> None:
        self._settings = settings
        self._topology = topology
        self._link = link
        self._provisioning = provisioning
        self._dead_letters = dead_letters

    async def checks(self, command: str) -> AsyncIterator[Check]:
        """Ends early where the broker goes away meanwhile."""
        reached = await self._reached()
        yield reached
        if reached.status is not Status.OK:
            return
        try:
            survey = await self._provisioning.survey()
            yield self._complete(survey, command)
            yield self._wanted(survey, command)
            if any(part.name == self._topology.dead_letters for part in survey.parts if part.state in THERE):
                yield await self._given_up(command)
        except TransportUnavailableError as error:
            yield Check(name="broker", status=Status.TO_DO, found=error.found, remedy=error.remedy)

    async def _reached(self) -> Check:
        try:
            async with asking(self._link, "itself") as channel:
                version = channel.connection.server_properties.get("version", "of an unknown version")
        except TransportUnavailableError as error:
            return Check(name="broker", status=Status.TO_DO, found=error.found, remedy=error.remedy)
        return Check(
            name="broker", status=Status.OK, found=f"answers: {self._settings.safe_url}, RabbitMQ {_text(version)}"
        )

    def _complete(self, survey: Survey, command: str) -> Check:
        different, missing = survey.those(PartState.DIFFERENT), survey.those(PartState.MISSING)
        if different:
            return Check(
                name="topology", status=Status.WRONG, found="; ".join(part.problem or part.name for part in different)
            )
        if missing:
            starting = f"start `{command} run`, which makes it, or " if self._settings.declare_topology else ""
            return Check(
                name="topology",
                status=Status.TO_DO,
                found=f"missing: {_named(missing)}",
                remedy=f"{starting}run: {command} topology apply",
            )
        if not self._topology.bindings:
            return Check(
                name="topology", status=Status.OK, found="no handler takes an integration event: nothing is consumed"
            )
        return Check(
            name="topology",
            status=Status.OK,
            found=f"{len(self._topology.queues)} queues; {self._topology.queue} takes "
            f"{', '.join(self._topology.bindings)}",
        )

    def _wanted(self, survey: Survey, command: str) -> Check:
        unwanted = survey.those(PartState.UNWANTED)
        if unwanted:
            return Check(
                name="bindings",
                status=Status.TO_DO,
                found=f"bound, and no handler wants it: {', '.join(part.name for part in unwanted)}",
                remedy=f"once no instance of an older version needs it, run: {command} topology prune",
            )
        if survey.notes:
            # The API is optional; where somebody asked for it, it has to answer.
            status = Status.TO_DO if self._settings.management_url else Status.OK
            return Check(name="bindings", status=status, found="; ".join(survey.notes))
        return Check(name="bindings", status=Status.OK, found="none that no handler wants")

    async def _given_up(self, command: str) -> Check:
        count = await self._dead_letters.count()
        if not count:
            return Check(name="broker dead letters", status=Status.OK, found="none")
        return Check(
            name="broker dead letters",
            status=Status.TO_DO,
            found=f"{count} in {self._topology.dead_letters}",
            remedy=f"look at them with `{command} dead-letters list`, mend the cause, then replay them",
        )


def _named(parts: tuple[Part, ...]) -> str:
    return ", ".join(f"{part.kind} {part.name}" for part in parts)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
