"""OpenTelemetry spans of what runs went through in the pool, below those that Prefect makes of the runs themselves.

Prefect makes spans where its telemetry is on (``PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY``): of each flow run, in
the run's process, and it labels the run with that span's context. Ours are made by the worker, with OpenTelemetry's
API: where they go is for whoever configures its SDK (``opentelemetry-instrument prefect worker start ...``, say).
Without an SDK nothing is made, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider
from prefect.client.schemas.objects import FlowRun
from prefect.settings import get_current_settings

from prefect_gpu.runtime.activity_log import LEFT
from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.launch.launch import Follower, Launch
from prefect_gpu.training import protocol

_LAUNCHING, _GATE, _WAITING = "launching", "gate", "waiting"
_TRACEPARENT = "__OTEL_TRACEPARENT"  # the label by which Prefect hands its span on; see prefect.telemetry


class RunSpans(Follower):
    """Makes a span of each launch, and below it one of each phase: waiting, launching, preparing, training, saving.

    Args:
        pool: The pool's name.
        flow_run: A run as it was read last; None: not read by this worker.
        provider: Of OpenTelemetry; None: the process's.
    """

    def __init__(
        self, pool: str, flow_run: Callable[[str], FlowRun | None], provider: TracerProvider | None = None
    ) -> None:
        self._pool, self._flow_run = pool, flow_run
        self._tracer: Tracer = trace.get_tracer("prefect-gpu", tracer_provider=provider)
        self._launches: dict[str, Span] = {}
        self._phases: dict[str, Span] = {}

    def granted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`. What it waited for is told now that it is over."""
        record = launch.record
        since = max(record.times.get("submitted", at), record.times.get("due", 0.0))
        span = self._begin(launch, min(since, at))
        self._in(span, _WAITING, min(since, at)).end(_ns(at))
        self._enter(launch, _LAUNCHING, at)

    def adopted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`. The phase that lasts is begun anew."""
        self._begin(launch, at)
        self._enter(launch, launch.phase, at)

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> tuple[()]:
        """See :class:`.Follower`."""
        if kind == protocol.PHASE and launch.run_id in self._launches:
            self._enter(launch, _GATE if launch.waiting else launch.phase, at)
        return ()

    def wasted(self, launch: Launch, stage: str, at: float) -> None:
        """See :class:`.Follower`."""
        if (span := self._launches.get(launch.run_id)) is not None and stage:
            span.add_event("prefect-gpu.wasting", {"stage": stage, "reason": launch.wasting}, _ns(at))

    def ended(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        self._leave(launch.run_id, at)

    def over(self, launch: Launch, at: float, outcome: str | None, message: str) -> None:
        """See :class:`.Follower`."""
        span = self._launches.pop(launch.run_id, None)
        if span is None:
            return
        self._leave(launch.run_id, at)
        span.set_attribute("prefect_gpu.outcome", outcome or "not started")
        if outcome in ("failed", "crashed"):
            span.set_status(Status(StatusCode.ERROR, message[:1000]))
        elif outcome not in (None, LEFT):
            span.set_status(Status(StatusCode.OK))
        span.end(_ns(at))

    def released(self, launch: Launch, at: float, carries_on: bool) -> None:
        """See :class:`.Follower`. If it was over before, this changes nothing."""
        self.over(launch, at, LEFT if carries_on else None, "")

    def label(self, run_id: str) -> dict[str, Any]:
        """The label by which Prefect's span of the run goes below ours; empty if it has a place already, or without an
        SDK."""
        flow_run, span = self._flow_run(run_id), self._launches.get(run_id)
        if span is None or (flow_run is not None and _TRACEPARENT in flow_run.labels):
            return {}
        carrier: dict[str, Any] = {}
        propagate.inject(carrier, context=trace.set_span_in_context(span))
        return {_TRACEPARENT: carrier["traceparent"]} if "traceparent" in carrier else {}

    def _begin(self, launch: Launch, at: float) -> Span:
        record, place = launch.record, launch.record.placement
        span = self._tracer.start_span(
            f"{record.name} on {', '.join(place.all_devices) or place.node}",
            context=self._above(launch.run_id),
            start_time=_ns(at),
            attributes={
                "prefect.run.id": launch.run_id,
                "prefect.run.name": record.name,
                "prefect_gpu.pool": self._pool,
                "prefect_gpu.attempt": record.attempt,
                "prefect_gpu.devices": list(place.all_devices),
                "prefect_gpu.nodes": list(place.nodes),
            },
        )
        self._launches[launch.run_id] = span
        return span

    def _enter(self, launch: Launch, phase: str, at: float) -> None:
        self._leave(launch.run_id, at)
        if phase != protocol.FINISHED:
            self._phases[launch.run_id] = self._in(self._launches[launch.run_id], phase, at)

    def _leave(self, run_id: str, at: float) -> None:
        phase = self._phases.pop(run_id, None)
        if phase is not None:
            phase.end(_ns(at))

    def _in(self, above: Span, phase: str, at: float) -> Span:
        context = trace.set_span_in_context(above)
        return self._tracer.start_span(phase, context=context, start_time=_ns(at))

    def _above(self, run_id: str) -> Context | None:
        """The span that Prefect has made of the run, or of who submitted it, as far as the run's labels say so."""
        flow_run = self._flow_run(run_id)
        labels: Mapping[str, Any] = {} if flow_run is None else flow_run.labels
        parent = labels.get(_TRACEPARENT)
        return propagate.extract({"traceparent": str(parent)}) if parent else Context()


def _ns(at: float) -> int:
    """A moment of the worker's time, as OpenTelemetry tells it."""
    return int(CLOCK.unix(at) * 1e9)


def prefect_traces() -> bool:
    """Whether Prefect makes spans of runs, as its settings say."""
    return get_current_settings().cloud.enable_orchestration_telemetry
