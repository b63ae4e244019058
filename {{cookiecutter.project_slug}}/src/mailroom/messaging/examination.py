"""What `doctor` says about a broker: there, complete, wanted, and what was given up (contract A1)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from mailroom.checks import Check, Status
from mailroom.errors import MailroomError, TransportUnavailableError
from mailroom.messaging.transports.base import DeadLetters, Part, PartState, Provisioning, Survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Yields each check as it is made; what cannot be looked at, since an earlier check failed, is left out."""

    where: Callable[[], Awaitable[str]]
    """Reaches the broker and says which it is. Raises TransportUnavailableError."""
    provisioning: Provisioning
    dead_letters: DeadLetters
    summary: str
    """What there is if nothing is missing."""
    binding: str
    """What the broker calls that which leads an event to the service's queue: binding, rule."""
    declares: bool
    """Whether the service makes at its start what is missing."""
    has_to_answer: bool
    """Whether somebody has to act where something could not be looked at."""

    async def checks(self, command: str) -> AsyncIterator[Check]:
        """Ends early where the broker goes away meanwhile."""
        try:
            found = await self.where()
        except TransportUnavailableError as error:
            yield Check(name="broker", status=Status.TO_DO, found=error.found, remedy=error.remedy)
            return
        yield Check(name="broker", status=Status.OK, found=f"answers: {found}")
        try:
            survey = await self.provisioning.survey()
            yield self._complete(survey, command)
            yield self._wanted(survey, command)
            if (count := await self._count()) is not None:
                yield self._given_up(count, command)
        except TransportUnavailableError as error:
            yield Check(name="broker", status=Status.TO_DO, found=error.found, remedy=error.remedy)

    def _complete(self, survey: Survey, command: str) -> Check:
        different, missing = survey.those(PartState.DIFFERENT), survey.those(PartState.MISSING)
        if different:
            return Check(
                name="topology", status=Status.WRONG, found="; ".join(part.problem or part.name for part in different)
            )
        if missing:
            starting = f"start `{command} run`, which makes it, or " if self.declares else ""
            return Check(
                name="topology",
                status=Status.TO_DO,
                found=f"missing: {_named(missing)}",
                remedy=f"{starting}run: {command} topology apply",
            )
        return Check(name="topology", status=Status.OK, found=self.summary)

    def _wanted(self, survey: Survey, command: str) -> Check:
        unwanted = survey.those(PartState.UNWANTED)
        if unwanted:
            return Check(
                name=f"{self.binding}s",
                status=Status.TO_DO,
                found=f"there, and no handler wants it: {', '.join(part.name for part in unwanted)}",
                remedy=f"once no instance of an older version needs it, run: {command} topology prune",
            )
        if survey.notes:
            status = Status.TO_DO if self.has_to_answer else Status.OK
            return Check(name=f"{self.binding}s", status=status, found="; ".join(survey.notes))
        return Check(name=f"{self.binding}s", status=Status.OK, found="none that no handler wants")

    async def _count(self) -> int | None:
        """None if there is no place for dead letters."""
        try:
            return await self.dead_letters.count()
        except TransportUnavailableError:
            raise
        except MailroomError:
            return None

    def _given_up(self, count: int, command: str) -> Check:
        if not count:
            return Check(name="broker dead letters", status=Status.OK, found="none")
        return Check(
            name="broker dead letters",
            status=Status.TO_DO,
            found=f"{count} in {self.dead_letters.place}",
            remedy=f"look at them with `{command} dead-letters list`, mend the cause, then replay them",
        )


def _named(parts: tuple[Part, ...]) -> str:
    return ", ".join(f"{part.kind} {part.name}" for part in parts)
