"""Contract A2: one trace from the commit to the handler and on, and what can be counted and measured."""

from collections import defaultdict
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support import Compose, Deposited, Renamed, effect, until

from mailroom import Context, Handlers
from mailroom.outbox.selection import Selection


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture(scope="session")
def reader() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return reader


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    exporter.clear()
    return exporter


def measured(reader: InMemoryMetricReader) -> dict[tuple[str, str], Any]:
    """By the metric's name and what was counted: the value, or how many values went into a histogram."""
    data = reader.get_metrics_data()
    found: dict[tuple[str, str], Any] = defaultdict(int)
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    what = point.attributes.get("verdict") or point.attributes.get("outcome") or ""
                    found[metric.name, str(what)] += getattr(point, "value", getattr(point, "count", 0))
    return found


handlers = Handlers()


@handlers.on(Deposited)
async def pass_on(event: Deposited, context: Context[Any]) -> None:
    if event.amount < 0:
        raise ValueError("a deposit below zero")
    context.publish(Renamed(new_name="x"))


@handlers.on(Renamed)
async def note(event: Renamed, context: Context[Any]) -> None:
    effect(context)


@pytest.mark.parametrize("outbox_on", [True, False])
async def test_one_trace_goes_through_every_event_that_follows(
    compose: Compose, spans: InMemorySpanExporter, outbox_on: bool
) -> None:
    mailroom = await compose(handlers, outbox_on=outbox_on)
    with trace.get_tracer("test").start_as_current_span("request") as request:
        await mailroom.publish(Deposited(amount=1))
    await mailroom.drain()
    named = {span.name: span for span in spans.get_finished_spans()}
    deposited, renamed = named["process bank.deposited"], named["process bank.renamed"]
    assert deposited.parent is not None
    assert deposited.parent.span_id == request.get_span_context().span_id
    assert renamed.parent is not None
    assert renamed.parent.span_id == deposited.context.span_id
    assert renamed.context.trace_id == request.get_span_context().trace_id


async def test_a_failed_handler_marks_its_span(compose: Compose, spans: InMemorySpanExporter) -> None:
    mailroom = await compose(handlers, outbox_on=True)
    await mailroom.publish(Deposited(amount=-1))
    await mailroom.drain()
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR


async def test_what_becomes_of_messages_is_counted(compose: Compose, reader: InMemoryMetricReader) -> None:
    before = measured(reader)
    mailroom = await compose(handlers, outbox_on=True, inbox_on=True, outbox={"max_attempts": 1})
    await mailroom.publish(Deposited(amount=1))
    await mailroom.publish(Deposited(amount=-1))
    await mailroom.drain()
    await mailroom.outbox.replay(Selection(ids=[1]))
    await mailroom.drain()
    after = measured(reader)
    risen = {name: after[name] - before.get(name, 0) for name in after}
    assert risen["mailroom.outbox.relayed", "processed"] == 3
    assert risen["mailroom.outbox.relayed", "dead-lettered"] == 1
    assert risen["mailroom.inbox.consumed", "handled"] == 2
    assert risen["mailroom.inbox.consumed", "duplicate"] == 1
    assert risen["mailroom.inbox.consumed", "failed"] == 1
    assert risen["mailroom.dispatch.lag", ""] == 4


async def test_the_backlog_is_measured_once_somebody_collects(compose: Compose, reader: InMemoryMetricReader) -> None:
    mailroom = await compose(handlers, outbox_on=True, outbox={"polling_interval_seconds": 0.01})
    await mailroom.publish(Deposited(amount=-1))
    await mailroom.drain()
    await mailroom.processor.start()

    async def is_measured() -> bool:
        found = measured(reader)
        return found["mailroom.outbox.pending", ""] == 1 and found["mailroom.outbox.oldest", ""] > 0

    await until(is_measured)
    await mailroom.processor.stop()
