"""OpenTelemetry's spans of a run's phases, made with the real SDK."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, StatusCode
from prefect.client.schemas.objects import FlowRun

from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.training import protocol
from prefect_gpu.worker.telling.run_spans import RunSpans
from tests.runtime.launches import launched

RUN = "00000000-0000-0000-0000-000000000001"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced:
    """A run that goes through its phases, and what is exported of it."""

    def __init__(self, labels: dict[str, Any] | None = None) -> None:
        self._exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.flow_run = FlowRun(id=UUID(RUN), name="sly fox", flow_id=UUID(RUN), labels=labels or {})
        self.spans = RunSpans("gpus", lambda _: self.flow_run, provider)

    @property
    def exported(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def begin(self) -> Launch:
        run = launched(RUN, times={"submitted": 90.0, "granted": 100.0}, folder=Path("nowhere"))
        self.spans.granted(run, 100.0)
        return run

    def enter(self, run: Launch, phase: str, at: float, **data: Any) -> None:
        run.enter(phase, at, data)
        self.spans.reported(run, protocol.PHASE, at, data)

    def end(self, run: Launch, at: float, outcome: str = "completed", message: str = "") -> None:
        self.spans.ended(run, at)
        self.spans.over(run, at + 1.0, outcome, message)
        self.spans.released(run, at + 2.0, False)


def lasted(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return round((span.end_time - span.start_time) / 1e9, 3)


def test_each_phase_is_a_span_below_that_of_the_launch() -> None:
    traced = Traced()
    run = traced.begin()
    traced.enter(run, "preparing", 103.0)
    traced.enter(run, "preparing", 104.0, waiting=True)
    traced.enter(run, "training", 106.0)
    traced.enter(run, "saving", 116.0)
    traced.enter(run, "finished", 117.0)
    traced.end(run, 118.0)
    found = traced.exported
    whole = found.pop("sly fox on virtual-0")
    assert {name: lasted(span) for name, span in found.items()} == {
        "waiting": 10.0, "launching": 3.0, "preparing": 1.0, "gate": 2.0, "training": 10.0, "saving": 1.0,
    }  # fmt: skip
    assert all(span.parent and span.parent.span_id == whole.context.span_id for span in found.values())
    assert lasted(whole) == 29.0 and whole.parent is None and whole.status.status_code is StatusCode.OK
    told = dict(whole.attributes or {})
    assert told["prefect.run.id"] == RUN and told["prefect_gpu.outcome"] == "completed"
    assert told["prefect_gpu.devices"] == ("virtual-0",) and told["prefect_gpu.pool"] == "gpus"


def test_a_launch_goes_below_the_span_that_prefect_has_made_and_else_prefects_below_it() -> None:
    traced = Traced({"__OTEL_TRACEPARENT": f"00-{TRACE}-{PARENT}-01"})
    run = traced.begin()
    assert traced.spans.label(RUN) == {}, "the run has its place in the trace of who submitted it"
    traced.end(run, 101.0)
    whole = traced.exported["sly fox on virtual-0"]
    assert whole.parent is not None
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, PARENT)
    alone = Traced()
    run = alone.begin()
    label = alone.spans.label(RUN)["__OTEL_TRACEPARENT"]
    alone.end(run, 101.0)
    assert f"{alone.exported['sly fox on virtual-0'].context.span_id:016x}" in label


@pytest.mark.parametrize("outcome", ["failed", "crashed"])
def test_a_run_that_fails_is_an_error_with_its_message(outcome: str) -> None:
    traced = Traced()
    traced.end(traced.begin(), 105.0, outcome, "memory ran out")
    status = traced.exported["sly fox on virtual-0"].status
    assert status.status_code is StatusCode.ERROR and status.description == "memory ran out"


def test_waste_is_an_event_of_the_launch_and_an_adopted_run_has_spans_too() -> None:
    traced = Traced()
    run = launched(RUN, phase="training")
    traced.spans.adopted(run, 100.0)
    run.wasting = "it sleeps"
    traced.spans.wasted(run, "tell", 110.0)
    traced.end(run, 120.0)
    [event] = traced.exported["sly fox on virtual-0"].events
    assert event.name == "prefect-gpu.wasting" and lasted(traced.exported["training"]) == 20.0


def test_without_an_sdk_nothing_is_made() -> None:
    spans = RunSpans("gpus", lambda _: None, NoOpTracerProvider())
    run = launched(RUN)
    spans.granted(run, 100.0)
    assert spans.label(RUN) == {}
    spans.over(run, 101.0, "completed", "")
