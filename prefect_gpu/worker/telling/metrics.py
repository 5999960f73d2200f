"""What the pool does as metrics that Prometheus understands; the page serves them at ``/metrics``."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from prefect_gpu.estimation.runs import TRAINING_S
from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.launch.launch import Follower, Launch
from prefect_gpu.runtime.metering.consumption import SOURCES
from prefect_gpu.storage.row import OUTCOMES, HistoryRow
from prefect_gpu.training import protocol

if TYPE_CHECKING:
    from prefect_gpu.runtime.controller import Controller

PREFIX = "prefect_gpu_"
LEAVES = ("preempted", "suspended", "moved", "resized")

_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
_HAND_OVER = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
_RATIOS = (0.25, 0.5, 0.8, 0.9, 1.1, 1.25, 2.0, 4.0)


class PoolMetrics(Follower, Collector):
    """Counts and measures. What happened is counted since the worker's start; how things are is looked at when asked.

    Args:
        pool: Its name, a label of every metric.
        controller: Whose runs.
    """

    def __init__(self, pool: str, controller: Controller) -> None:
        self._pool, self._controller = pool, controller
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._ended = self._counter("runs_ended", "Runs that have ended, by outcome", "outcome")
        self._left = self._counter("runs_left", "Runs that left their devices to carry on, by how", "how")
        self._demoted = self._counter("runs_demoted", "Times that a run was given less than a full share")
        for outcome in OUTCOMES:
            self._ended.labels(pool, outcome)
        for how in LEAVES:
            self._left.labels(pool, how)
        self._demoted.labels(pool)
        self._waits = self._histogram("wait_seconds", "From submission to the grant of devices", _SECONDS)
        self._launches = self._histogram("launch_seconds", "From the grant until the run could train", _SECONDS)
        self._trainings = self._histogram("training_seconds", "From the beginning to the end of training", _SECONDS)
        self._savings = self._histogram("saving_seconds", "From the end of training to the end of saving", _SECONDS)
        self._hand_overs = self._histogram(
            "hand_over_seconds", "For which devices stood idle between two trainings", _HAND_OVER
        )
        self._errors = self._histogram(
            "training_estimate_ratio", "Training time as estimated at submission, over what it was", _RATIOS
        )

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}{name}", f"{words}.", ("pool", *labels), registry=self._registry)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"{PREFIX}{name}", f"{words}.", ("pool",), registry=self._registry, buckets=buckets)
        made.labels(self._pool)
        return made

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics, and their media type, as the ``Accept`` header wants them: OpenMetrics, or Prometheus' text."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type

    # -- what happened ----------------------------------------------------------------------------------------------

    def happened(self, what: str) -> None:
        """Something has happened to a run: the last part of the name of one of :class:`.RunEvents`."""
        if what in LEAVES:
            self._left.labels(self._pool, what).inc()
        elif what == "demoted":
            self._demoted.labels(self._pool).inc()

    def ended(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        if launch.device_idle_s is not None:
            self._hand_overs.labels(self._pool).observe(launch.device_idle_s)

    def recorded(self, row: HistoryRow) -> None:
        """A run is over; may be called from any thread."""
        self._ended.labels(self._pool, row.outcome).inc()
        for histogram, value in (
            (self._waits, row.waited_s),
            (self._launches, row.prepared_s),
            (self._trainings, row.trained_s),
            (self._savings, row.saved_s),
        ):
            if value is not None:
                histogram.labels(self._pool).observe(value)
        estimated = row.estimate.get(TRAINING_S)
        if row.outcome == "completed" and isinstance(estimated, (list, tuple)) and row.trained_s:
            self._errors.labels(self._pool).observe(float(estimated[0]) / row.trained_s)

    # -- how things are ---------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        yield self._devices()
        yield from self._of_devices()
        yield self._runs()
        yield self._wasting()
        yield from self._queue()
        yield from self._taken()
        yield self._promises()

    def _gauge(self, name: str, words: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{PREFIX}{name}", f"{words}.", labels=("pool", *labels))

    def _devices(self) -> Metric:
        state, fleet = self._controller.scheduler.state, self._controller.fleet
        found: Count[tuple[str, str]] = Count()
        for node, condition in fleet.known:
            for device in node.devices:
                held = bool(state.has_node(device.id) and state.occupants(device.id))
                condition = "cordoned" if fleet.is_out(device.id) else condition
                found[device.kind, "busy" if held else "free" if condition == "up" else condition] += 1
        devices = self._gauge("devices", "Devices, by kind, and free, busy, cordoned, closed or gone", "kind", "state")
        for (kind, what), count in sorted(found.items()):
            devices.add_metric((self._pool, kind, what), count)
        return devices

    def _of_devices(self) -> Iterator[Metric]:
        idle = CounterMetricFamily(
            f"{PREFIX}device_idle_between_trainings_seconds",
            "Seconds for which a device stood idle between two trainings.",
            labels=("pool", "node", "device"),
        )
        for node, _ in self._controller.fleet.known:
            for device in node.devices:
                idle.add_metric((self._pool, node.id, device.id), self._controller.idle.total(device.id)[0])
        yield idle

    def _runs(self) -> Metric:
        runs = self._gauge("runs", "Launched runs, by phase", "phase")
        phases = Count(launch.phase for launch in self._controller.runs.values())
        for phase in ("launching", *protocol.PHASES):
            runs.add_metric((self._pool, phase), phases[phase])
        return runs

    def _promises(self) -> Metric:
        reach = self._controller.scheduler.state.learned.reach
        promises = CounterMetricFamily(
            f"{PREFIX}promises",
            "Deadlines that were promised and kept or broken, or refused.",
            labels=("pool", "outcome"),
        )
        for outcome, count in (("kept", reach.kept), ("broken", reach.broken), ("refused", reach.refused)):
            promises.add_metric((self._pool, outcome), count)
        return promises

    def _wasting(self) -> Metric:
        wasting = self._gauge("wasting_runs", "Launched runs that hold devices without using them")
        wasting.add_metric((self._pool,), sum(bool(launch.wasting) for launch in self._controller.runs.values()))
        return wasting

    def _queue(self) -> Iterator[Metric]:
        state, now = self._controller.scheduler.state, CLOCK()
        due = [job for job in state.waiting() if job.due_at <= now]
        names = {queue.id: queue.name or queue.id for queue in state.quotas.queues}
        waiting = self._gauge("waiting_runs", "Runs that are due and wait for devices, by work queue", "queue")
        counted = Count(names.get(job.queue, job.queue) for job in due)
        for queue in sorted({*names.values(), *counted}):
            waiting.add_metric((self._pool, queue), counted[queue])
        yield waiting
        longest = self._gauge("longest_wait_seconds", "For which the run has waited that has waited longest")
        oldest = min((max(job.submitted_at, job.due_at) for job in due), default=now)
        longest.add_metric((self._pool,), max(0.0, now - oldest))
        yield longest

    def _taken(self) -> Iterator[Metric]:
        """What runs have taken since the worker's start."""
        consumption = self._controller.consumption
        energy = CounterMetricFamily(
            f"{PREFIX}energy_joules",
            "Joules that runs took: of GPUs by NVML (gpu), of runs without one by the processors' RAPL (cpu).",
            labels=("pool", "source"),
        )
        for source in SOURCES:
            energy.add_metric((self._pool, source), consumption.energy_j[source])
        yield energy
        cost = CounterMetricFamily(
            f"{PREFIX}device_cost",
            "Price of the device time that runs took, as far as it is known what the devices cost.",
            labels=("pool",),
        )
        cost.add_metric((self._pool,), consumption.cost)
        yield cost
