"""What user code holds in its hands: entities that raise events, and the session that keeps them."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Session, object_session

from mailroom import tracing
from mailroom.events import Event
from mailroom.persistence import capture
from mailroom.persistence.capture import Raised


def raised_now(
    event: Event,
    *,
    source: object | None = None,
    ordering_key: str | None = None,
    delay: timedelta | None = None,
    not_before: datetime | None = None,
) -> Raised:
    """An event with the trace and the cause that it is raised in.

    Raises ValueError for a delay together with an ordering key, and for a naive `not_before`.
    """
    return Raised(
        event=event,
        headers=tracing.outgoing_headers(),
        ordering_key=ordering_key,
        delay=delay,
        not_before=not_before,
        source=source,
    )


class RaisesEvents:
    """Mixin for mapped classes: `self.raise_event(event)` sends the event with the commit that stores the change.

    Whether it is sent follows the change: committed together, or rolled back together (contract O1).
    """

    def raise_event(
        self,
        event: Event,
        *,
        ordering_key: str | None = None,
        delay: timedelta | None = None,
        not_before: datetime | None = None,
    ) -> None:
        """Raises an event, at the earliest after a delay or at a time (contract O6), or in order of its key (R3)."""
        session = object_session(self)
        raised = raised_now(event, source=self, ordering_key=ordering_key, delay=delay, not_before=not_before)
        if session is None:
            capture.held_by(self).append(raised)
        else:
            capture.record(session, raised)


class MailroomSession(Session):
    """A session that also keeps the events of objects it only copies: `merge` and the bulk operations."""

    def merge(self, instance: Any, **options: Any) -> Any:
        merged = super().merge(instance, **options)
        for source in _cascade(instance):
            capture.take_over(self, source)
        return merged

    def merge_all(self, instances: Iterable[Any], **options: Any) -> Sequence[Any]:
        sources = list(instances)
        merged = super().merge_all(sources, **options)
        for instance in sources:
            for source in _cascade(instance):
                capture.take_over(self, source)
        return merged

    def bulk_save_objects(self, objects: Iterable[object], *args: Any, **options: Any) -> None:
        sources = list(objects)
        super().bulk_save_objects(sources, *args, **options)
        for source in sources:
            capture.take_over(self, source)


def _cascade(instance: object) -> Iterable[object]:
    state = inspect(instance)
    yield instance
    for related, *_ in state.mapper.cascade_iterator("merge", state):
        yield related
