"""The paper's four mixes in our own world: a continuous clock, costs of stopping, and any placement (Ryu & Eo §VI).

256 jobs wait at 0 for 4 nodes of 8 GPUs. Each takes an hour alone and asks for up to 32 GPUs, the counts of 1, 2, 4 …
equally often; they may be anywhere. Jobs that are on several nodes and share one slow each other down.

What the paper does not say, and is assumed here: the counts are powers of two (its authors publish 2, 4 and 8); a start
takes 10 s, a checkpoint 5 s and loading one 5 s; every policy is told how long jobs and their starts take alone. Nobody
loses patience.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from prefect_gpu.papers.deepshare import profiles as deepshare
from prefect_gpu.papers.deepshare.contended import DURATION_S, JOBS, shuffled
from prefect_gpu.papers.deepshare.even_spread import EvenSpread
from prefect_gpu.papers.deepshare.speeds import Speeds
from prefect_gpu.papers.deepshare.traffic import TRAFFIC
from prefect_gpu.papers.from_trace import cluster
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.cores.cpu_array import CpuArray
from prefect_gpu.scheduling.interference.guard import InterferenceGuard
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable
from prefect_gpu.scheduling.model.events import Event
from prefect_gpu.scheduling.model.instructions import Instruction
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.profiles.adaptive import adaptive
from prefect_gpu.scheduling.state.learned import Learned
from prefect_gpu.simulation.effects.contention import Contention
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.traces import ContentionTable
from prefect_gpu.simulation.world import World

NODES, GPUS_PER_NODE = 4, 8
SIZES = (1, 2, 4, 8, 16, 32)
LAUNCHING_S, CHECKPOINT_S, RESTORE_S = 10.0, 5.0, 5.0
BUSY = "deepshare-busy"
"""The profile ``deepshare``, which starts whatever lets more be done in all as long as any GPU is free."""

_WIDTHS = (2, 4)
_MANY = 128


@dataclass(frozen=True)
class Figures:
    """What came of one job set.

    Attributes:
        jct_s: Mean seconds from 0 to a job's end, waiting included.
        p90_jct_s: The 90th percentile of the same.
        running_s: Mean seconds for which a job trained: 3,600 if nobody slowed anybody down.
        used: Mean part of the GPUs that trained, until the last job's end.
        makespan_s: When that was.
        decision_p99_s: 99th percentile of the processor seconds of a decision, of those with 128 jobs waiting or more.
    """

    jct_s: float
    p90_jct_s: float
    running_s: float
    used: float
    makespan_s: float
    decision_p99_s: float = 0.0


class Truth:
    """How much jobs slow each other down in the world, and what a policy may know of it.

    Args:
        measured: The authors' tables; None predicts all ratios from the paper's Table I, with the same speed alone on
            however many nodes.
    """

    def __init__(self, measured: ContentionTable | None = None) -> None:
        self.measured = measured is not None
        self._ratios = measured.ratios if measured else {}
        self.speeds: Mapping[Key, float] = measured.isolated if measured else {}

    def table(self) -> SensitivityTable:
        """A fresh table: policies teach theirs."""
        return SensitivityTable(self._ratios, TRAFFIC)

    def physics(self) -> Contention:
        """What it does in the world."""
        return Contention(self.table(), Speeds(self.speeds))

    def profile(self, name: str, *, spread: bool = False, sizes: Iterable[int] = SIZES) -> Profile:
        """A profile for this world; the rule and the hybrids of DeepShare know the ratios.

        Args:
            spread: Every job of several GPUs goes on 2 or 4 nodes, as in the paper's world, whoever decides: on 2 if
                it fits there. (DeepShare's choose for themselves which of the two.)
            sizes: GPUs that jobs ask for.
        """
        speeds = dict(self.speeds)
        if spread and not speeds:
            spreads = [(gpus, width) for gpus in sizes for width in _WIDTHS if not gpus % width]
            speeds = {Key(model, gpus, width): 1.0 for model in TRAFFIC for gpus, width in spreads}
        known = speeds if spread else None
        if name == "adaptive":
            found = adaptive()
            *others, fill = found.allocation
            assert isinstance(fill, Backfill)
            guarded = Backfill(fill.make_room, InterferenceGuard(Speeds(known, fewest=True)))
            return replace(
                found,
                placement=CpuArray(EvenSpread(_WIDTHS)) if spread else found.placement,
                allocation=(*others, guarded),
                learned=Learned(self.table()),
                patience_s=math.inf,
            )
        if name == BUSY:
            return replace(deepshare.hybrid(self.table(), known, rule=deepshare.BUSY), name=name)
        if name in ("deepshare", "deepshare-greedy") or name.startswith("deepshare-hybrid"):
            return deepshare.knowing(name, self.table(), known)
        profile = without_patience(name)
        return replace(profile, placement=EvenSpread(_WIDTHS)) if spread else profile


def draw(seed: int, jobs: int = JOBS, mix: str = "normal", sizes: Sequence[int] = SIZES) -> Iterator[JobModel]:
    """A job set: models as in the mix, shuffled; GPUs at random.

    Raises:
        ValueError: The mix is not known.
    """
    chooser = random.Random(f"mixes {mix} {seed}")
    for at, model in enumerate(shuffled(mix, jobs, chooser)):
        yield JobModel(
            f"{at:04d}",  # ties are decided by name
            0.0,
            DURATION_S,
            Request(gpus=chooser.choice(sizes), spans=True, preemptible=True, kind=model),
            launching_s=LAUNCHING_S,
            checkpoint_s=CHECKPOINT_S,
            restore_s=RESTORE_S,
            estimate=Estimate(service_s=DURATION_S, launching_s=LAUNCHING_S),
            kind=model,
        )


def least_p90_jct_s(jobs: Iterable[JobModel]) -> float:
    """No policy can be below this: the smallest nine tenths of the jobs, alone, on GPUs none of which is ever idle."""
    work = sorted(job.request.gpus * job.service_s for job in jobs)
    return sum(work[: math.ceil(0.9 * len(work))]) / (NODES * GPUS_PER_NODE)


def run(jobs: Iterable[JobModel], profile: Profile, truth: Truth) -> Figures:
    """The figures of one job set under one profile.

    Raises:
        RuntimeError: A job never ended.
    """
    world = World(cluster(NODES, GPUS_PER_NODE), jobs, profile, physics=truth.physics())
    took = decision_times(world.scheduler, _MANY)
    results = world.run()
    if results.unfinished:
        raise RuntimeError(f"{len(results.unfinished)} jobs never ended under {profile.name}, {results.unfinished[0]}")
    summary = results.summary()
    span_s = results.end_s
    return Figures(
        jct_s=summary["mean_jct_s"],
        p90_jct_s=summary["p90_jct_s"],
        running_s=sum(outcome.trained_s for outcome in results.outcomes) / len(results.outcomes),
        used=results.training_device_s / (results.devices * span_s),
        makespan_s=span_s,
        decision_p99_s=sorted(took)[int(0.99 * len(took))] if took else 0.0,
    )


def decision_times(
    scheduler: Scheduler, least_waiting: int = 0, counts: Callable[[Event], bool] = lambda _: True
) -> list[float]:
    """The processor seconds of each decision with so many jobs waiting or more; the list grows as they come.

    Args:
        counts: Which events are decided about; all, unless told otherwise.
    """
    took: list[float] = []
    handle, waiting = scheduler.handle, scheduler.state.queue_of_waiting

    def timed(event: Event, now: float) -> list[Instruction]:
        many, began = len(waiting) >= least_waiting and counts(event), time.process_time()
        said = handle(event, now)
        if many:
            took.append(time.process_time() - began)
        return said

    scheduler.handle = timed  # type: ignore[method-assign]
    return took
