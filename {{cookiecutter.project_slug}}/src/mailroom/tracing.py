"""What travels beside an event: the trace it belongs to, and which message caused it (contract A2)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind

from mailroom.envelope import Message

CORRELATION_ID = "correlation_id"
"""The message id of the first event in a chain; the same in all that follow from it."""
CAUSATION_ID = "causation_id"
"""The message id of the event whose handler raised this one."""

_handled_message: ContextVar[Message | None] = ContextVar("mailroom_handled_message", default=None)
_tracer = trace.get_tracer("mailroom")


def outgoing_headers() -> dict[str, str]:
    """The headers of an event that is raised now: trace context, correlation, causation."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    cause = _handled_message.get()
    if cause is not None:
        headers[CORRELATION_ID] = cause.headers.get(CORRELATION_ID, str(cause.message_id))
        headers[CAUSATION_ID] = str(cause.message_id)
    return headers


@contextmanager
def handling(message: Message) -> Iterator[None]:
    """A span around the handlers of one message, in the trace of the commit that raised it.

    What the handlers raise is correlated with the message.
    """
    token = _handled_message.set(message)
    try:
        if message.headers or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            with _span(message):
                yield
        else:  # nobody traces here, and there is no trace to hand on
            yield
    finally:
        _handled_message.reset(token)


def _span(message: Message) -> AbstractContextManager[trace.Span]:
    attributes = {
        "messaging.system": "mailroom",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.event_type,
        "messaging.message.id": str(message.message_id),
    }
    raised_in = propagate.extract(message.headers)
    name = f"process {message.event_type}"
    return _tracer.start_as_current_span(name, context=raised_in, kind=SpanKind.CONSUMER, attributes=attributes)
