"""A simulated pool, with a meter that knows nothing of how the scheduler counts."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.fairness.workload import CHECKPOINT_S, WEIGHTS
from prefect_gpu.papers.from_trace import cluster
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Quotas
from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.scheduling.model.shares import Shares
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.world import World

_SURE = 1e-6


def even_fill(wants: Mapping[str, float], sure: Mapping[str, float], devices: float) -> dict[str, float]:
    """What owners are owed: found by bisection of the level, and so in another way than the scheduler finds it."""
    if sum(wants.values()) <= devices:
        return dict(wants)
    floors = {owner: min(wants[owner], sure[owner]) for owner in wants}

    def at(level: float) -> dict[str, float]:
        return {owner: min(wants[owner], max(floors[owner], level * WEIGHTS[owner])) for owner in wants}

    low, high = 0.0, float(devices)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle).values()) < devices else (low, middle)
    return at(high)


@dataclass
class Meter:
    """What was measured.

    Attributes:
        gaps: Whenever something happened, and more was asked for than there is: the largest difference between what an
            owner has had and was owed over the half-life, as a part of all that was had.
        lacking_s: How long, each time, an owner had less than is guaranteed to it, though a run waited that would fit.
    """

    shares: Shares
    devices: int
    had: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0.0))
    owed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0.0))
    gaps: list[tuple[float, float, float]] = field(default_factory=list)
    lacking_s: list[float] = field(default_factory=list)
    since: dict[str, float] = field(default_factory=dict)

    def passed(self, holds: Mapping[str, float], wants: Mapping[str, float], start: float, end: float) -> None:
        """So it was between two moments."""
        sure = {share.name: float(share.guaranteed) for share in self.shares.named}
        due = even_fill({owner: wants.get(owner, 0.0) for owner in WEIGHTS}, sure, self.devices)
        kept = 2.0 ** (-(end - start) / self.shares.half_life_s)
        weight = self.shares.half_life_s / math.log(2) * (1 - kept)
        for owner in WEIGHTS:
            self.had[owner] = self.had[owner] * kept + holds.get(owner, 0.0) * weight
            self.owed[owner] = self.owed[owner] * kept + due[owner] * weight
        total = sum(self.had.values())
        if end >= self.shares.half_life_s and sum(wants.values()) > self.devices and total:
            gap = max(abs(self.had[owner] - self.owed[owner]) for owner in WEIGHTS) / total
            self.gaps.append((gap, end - start, end))

    def lacks(self, owner: str, lacking: bool, now: float) -> None:
        """Whether an owner lacks something that is guaranteed to it, from now on."""
        if lacking:
            self.since.setdefault(owner, now)
        elif owner in self.since:
            self.lacking_s.append(now - self.since.pop(owner))


class Divided(World):
    """A world whose pool is divided among owners, or is not; it is measured as if it were.

    Args:
        told: Whether the scheduler is told of the shares.
    """

    def __init__(self, jobs: Iterable[JobModel], nodes: int, shares: Shares, *, told: bool) -> None:
        super().__init__(cluster(nodes, 8), jobs, "adaptive")
        self.meter = Meter(shares, nodes * 8)
        if told:
            self._tell(ev.QuotasChanged(Quotas(shares=shares)))

    def _happen(self, moment: float) -> None:
        before = self._measured_until
        if moment > before:
            self.meter.passed(self._holds(), self._wants(), before, moment)
            self._measured_until = moment
        super()._happen(moment)

    _measured_until = 0.0

    def _decide(self) -> None:
        super()._decide()
        holds = self._given()
        for share in self.meter.shares.named:
            room = share.guaranteed - holds[share.name]
            waits = any(
                run.model.request.total_gpus <= room
                for run in self.runs.values()
                if run.model.request.owner == share.name and run.placement is None and run not in self._standby
            )
            self.meter.lacks(share.name, waits, self.now)

    def _holds(self) -> Counter[str]:
        """By owner: devices that its processes have, those included that save because they were told to stop."""
        found: Counter[str] = Counter()
        for run in self.active.values():
            assert run.placement is not None
            if run.gate_open:
                found[run.model.request.owner] += len(run.placement.all_devices)
        return found

    def _given(self) -> Counter[str]:
        """By owner: devices that its runs have and need not leave, or leave to another run of the same owner."""
        after = {
            device: run.model.request.owner
            for run in self._standby
            if run.next_place is not None
            for device in run.next_place.all_devices
        }
        found: Counter[str] = Counter()
        for run in self.active.values():
            if run.placement is not None and run.gate_open:
                owner, devices = run.model.request.owner, run.placement.all_devices
                stays = run.status is not Status.STOPPING
                found[owner] += sum(stays or after.get(device) == owner for device in devices)
        return found

    def _wants(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for run in self.runs.values():
            found[run.model.request.owner] += run.model.request.total_gpus
        return found


@dataclass(frozen=True)
class Found:
    """What came of one simulation."""

    mean_jct_s: float
    worst_gap: float
    mean_gap: float
    within_5: float
    longest_lack_s: float
    lacks: int
    starts_per_job: float
    by_owner: dict[str, float]


def simulate(jobs: list[JobModel], nodes: int, shares: Shares, *, told: bool) -> Found:
    """Play a workload to its end."""
    world = Divided(jobs, nodes, shares, told=told)
    results: Results = world.run()
    assert not results.unfinished
    gaps = world.meter.gaps
    total = sum(span for _, span, _ in gaps) or 1.0
    jct: dict[str, list[float]] = {owner: [] for owner in WEIGHTS}
    for outcome in results.outcomes:
        jct[outcome.job.partition("-")[0]].append(outcome.jct_s)
    return Found(
        mean_jct_s=statistics.fmean(outcome.jct_s for outcome in results.outcomes),
        worst_gap=max((gap for gap, _, _ in gaps), default=0.0),
        mean_gap=sum(gap * span for gap, span, _ in gaps) / total,
        within_5=sum(span for gap, span, _ in gaps if gap <= 0.05) / total,
        longest_lack_s=max(world.meter.lacking_s, default=0.0),
        lacks=sum(lack > CHECKPOINT_S + _SURE for lack in world.meter.lacking_s),
        starts_per_job=statistics.fmean(outcome.starts for outcome in results.outcomes),
        by_owner={owner: round(statistics.fmean(times)) for owner, times in jct.items()},
    )
