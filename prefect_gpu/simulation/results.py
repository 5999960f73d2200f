"""What came out of a simulation: per job, and in the figures that schedulers are compared by."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.run import Outcome, Run

UNFAIR = 1.05
"""Finish-time fairness above which a job was treated unfairly, as its inventors count it."""


@dataclass(frozen=True, slots=True)
class Span:
    """A job had a device, and trained there (or not: launching, saving) from one moment to another."""

    device: str
    job: str
    start_s: float
    end_s: float
    training: bool


class Results:
    """Collects what happens in a world.

    Args:
        devices: Devices in the cluster.
        keep_timeline: Whether to keep a :class:`Span` for each time that a job had a device.
    """

    def __init__(self, devices: int, *, keep_timeline: bool = False) -> None:
        self.outcomes: list[Outcome] = []
        self.timeline: list[Span] = []
        self.queue_lengths: list[tuple[float, int]] = []
        self.devices = devices
        self.jobs = 0
        self.decisions = 0
        self.wall_s = 0.0
        self.end_s = 0.0
        self.unfinished: list[str] = []
        self.refused: list[str] = []  # jobs whose deadlines could not be promised; they have no end
        self.fairness: list[float] = []  # finish-time fairness by job, in worlds that have it
        self.deadlines: dict[str, float | int] = {}  # how many were met, in worlds that have them
        self.placed: dict[str, float | int] = {}  # how much was, in worlds that nobody leaves and that have no time
        self.held_device_s = 0.0
        self.busy_device_s = 0.0  # training, each run at the speed that it has
        self.training_device_s = 0.0  # training, at whatever speed
        self._keep_timeline = keep_timeline
        self._decision_s = array("d")
        self._held_since: dict[str, float] = {}
        self._training_since: dict[str, float] = {}
        self._waiting = 0

    # -- while it happens -----------------------------------------------------------------------------------------

    def submitted(self, model: JobModel) -> Outcome:
        """A job was submitted."""
        outcome = Outcome(model.id, model.submit_s, model.request.total_gpus)
        self.outcomes.append(outcome)
        self.waits(model.submit_s, 1)
        return outcome

    def decided(self, seconds: float) -> None:
        """A decision took so long, in real time."""
        self.decisions += 1
        self._decision_s.append(seconds)

    def launched(self, run: Run, now: float) -> None:
        """A run got its devices."""
        run.outcome.starts += 1
        self._held_since[run.model.id] = now
        self.waits(now, -1)

    def trains(self, run: Run, now: float) -> None:
        """A run begins to train."""
        self._training_since[run.model.id] = now

    def trains_no_more(self, run: Run, now: float) -> None:
        """A run has trained."""
        start = self._training_since.pop(run.model.id, now)
        if run.placement is not None:
            self.had(run.placement.all_devices, run.model.id, start, now, training=True)

    def trained(self, run: Run, seconds: float, service_s: float) -> None:
        """A run trained for some time and got so much service."""
        run.outcome.trained_s += seconds
        devices = len(run.placement.all_devices) if run.placement else 0
        self.training_device_s += devices * seconds
        self.busy_device_s += devices * service_s * run.model.utilisation

    def left(self, run: Run, now: float) -> None:
        """A run's process is gone from its devices."""
        start = self._held_since.pop(run.model.id, now)
        if run.placement is not None:
            self.held_device_s += len(run.placement.all_devices) * (now - start)
            self.had(run.placement.all_devices, run.model.id, start, now, training=False)

    def had(self, devices: tuple[str, ...], job: str, start: float, now: float, *, training: bool) -> None:
        """A job had devices from one moment to another, and trained there or not."""
        if self._keep_timeline and now > start:
            self.timeline.extend(Span(device, job, start, now, training) for device in devices)

    def stopped(self, run: Run) -> None:
        """A run was stopped and waits again."""
        self.waits(run.since, 1)

    def ended(self, run: Run, now: float) -> None:
        """A run has ended."""
        run.outcome.end_s = now
        self.jobs += 1

    def waits(self, now: float, change: int) -> None:
        """So many more jobs wait (or, with a negative number, fewer)."""
        self._waiting += change
        if self._keep_timeline:
            self.queue_lengths.append((now, self._waiting))

    # -- afterwards -----------------------------------------------------------------------------------------------

    @property
    def finished(self) -> list[Outcome]:
        """The jobs that ended."""
        return [outcome for outcome in self.outcomes if outcome.end_s is not None]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        finished = self.finished
        if not finished:
            return 0.0
        first = min(o.first_start_s for o in finished if o.first_start_s is not None)
        return max(o.end_s for o in finished if o.end_s is not None) - first

    def summary(self) -> dict[str, float | int]:
        """The figures that ``prefect-gpu simulate --json`` prints; seconds, fractions and counts."""
        if self.placed:
            within_s = quantile(sorted(self._decision_s), 0.99)
            return {**self.placed, "wall_s": self.wall_s, "decisions": self.decisions, "decision_p99_s": within_s}
        times = sorted(outcome.jct_s for outcome in self.finished)
        waits = [o.jct_s - o.trained_s for o in self.finished]
        span_s = self.makespan_s
        decisions = sorted(self._decision_s)
        return {
            "jobs": len(times),
            "mean_jct_s": sum(times) / len(times) if times else 0.0,
            "p50_jct_s": quantile(times, 0.50),
            "p90_jct_s": quantile(times, 0.90),
            "p99_jct_s": quantile(times, 0.99),
            "makespan_s": span_s,
            "mean_wait_s": sum(waits) / len(waits) if waits else 0.0,
            "gpu_busy_fraction": self.busy_device_s / (self.devices * span_s) if span_s and self.devices else 0.0,
            "wall_s": self.wall_s,
            "jobs_per_s": len(times) / self.wall_s if self.wall_s else 0.0,
            "decisions": self.decisions,
            "decision_p99_s": quantile(decisions, 0.99),
            **(
                {"worst_fairness": max(self.fairness), "unfair_fraction": self.unfair_fraction} if self.fairness else {}
            ),
            **self.deadlines,
        }

    @property
    def unfair_fraction(self) -> float:
        """The part of the jobs that took more than 1.05 times as long as with their part of the cluster alone."""
        return sum(value > UNFAIR for value in self.fairness) / len(self.fairness) if self.fairness else 0.0


def quantile(ordered: list[float], q: float) -> float:
    """The value below which a part ``q`` of an ascending list lies (nearest rank); 0 for an empty list."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -(-int(q * len(ordered) * 1_000_000) // 1_000_000) - 1))]
