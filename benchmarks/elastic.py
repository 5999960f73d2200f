"""Do elastic runs finish sooner than in static slots? F-scheduling's Table 1 (Seo, 2020, §5), with real processes.

Four elastic trainings arrive at 0, 100, 200 and 300 s at a machine with six devices. The real controller schedules
them: by the profiles ``adaptive`` and ``f-scheduling``, which resize them, and by ``fifo`` in static slots of 1, 2, 3
and 6 devices. *Total time* is from the first submission until the last process has been finalised.

    python -m benchmarks.elastic [--json] [--quick] [--repeats N] [--scale N]

What is real: the controller, the channel, warm processes, checkpoints on disk, SIGKILL, and in each step one step of
SGD on scikit-learn's digits, whose result must be the same to the last bit as that of an undisturbed run. What is not:
the devices are virtual. The rest of a step's time is *slept*, for as long as T(n) of the paper's model says for the n
devices that the run has, and so is the rest of a launch's and of a checkpoint's time. All seconds are divided by
``--scale``, and so is the number of steps: the steps per second are the paper's, because the guard against thrashing
(1 step/s) has that unit. What the controller needs on top (stopping, forking, loading) is not scaled, so that it
weighs ``--scale`` times as much as it would in the paper's experiment. T(n) is reconstructed, as its table is lost:
see ``prefect_gpu/papers/fscheduling/experiments.py``; the static slots of the simulation are the paper's by
construction, those measured here are not.

The throughput f(n) is *stated*: the scheduler is told what follows from the T(n) that the runs sleep for, as the
thesis' manager is given f (§3). Nothing is learned from a history, or corrected while they train: it is the scheduling
and the resizing that are measured. That f is learned live is shown by ``tests/runtime/test_elastic_runs.py`` (real
processes) and ``tests/simulation/test_learned_speeds.py`` (generations of runs).

No Prefect takes part: what its engine adds to a resize is measured by ``benchmarks.move``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._claims import Claim, at_most, below, command_line, report
from benchmarks._elastic_training import VARIABLE, Order, train
from benchmarks._host.pool import Pool, Run, module, notes, virtual_node
from prefect_gpu.papers.fscheduling import experiments as paper
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request

OURS = ("adaptive", "f-scheduling")
SLOTS = (1, 2, 3, 6)
_PRELOAD = (
    "numpy",
    "sklearn.datasets",
    "prefect_gpu.training",
    "prefect_gpu.training.channel.client",
    "prefect_gpu.training.limits.usage",
    "prefect_gpu.training.channel.wire",
)
_WARM_UP_S = 60.0
_LOGGER = logging.getLogger("benchmarks.elastic")


@dataclass(frozen=True)
class Total:
    """One pass of the workload.

    Attributes:
        total_s: From the first submission until the last run was finalised.
        resized: How often a run was given more or fewer devices.
        again: Steps that were done twice, as they fell between a checkpoint and the stop.
        lost: Steps that are missing.
        different: Runs whose result is not that of the undisturbed one.
    """

    total_s: float
    resized: int
    again: int
    lost: int
    different: int


class Bench:
    """The workload, scaled.

    Args:
        scale: By what all seconds, and the number of steps, are divided.
    """

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder, self._scale = folder, scale
        self._steps = round(paper.STEPS / scale)
        self._passes = 0
        self._expected: dict[str, str] = {}

    def _order(self, model: str, seed: int, folder: Path, name: str, *, paced: bool = True) -> Order:
        at_least: dict[str, Any] = {}
        if paced:
            at_least = {
                "step_s": tuple(paper.training_s(model, n) / paper.STEPS for n in range(1, paper.GPUS + 1)),
                "launching_s": paper.LAUNCHING_S / self._scale,
                "checkpoint_s": paper.CHECKPOINT_S / self._scale,
            }
        result, noted = str(folder / f"{name}.result"), str(folder / f"{name}.notes")
        return Order(steps=self._steps, seed=seed, result=result, notes=noted, **at_least)

    def undisturbed(self) -> None:
        """What each run gives alone, in this very process and outside of any pool."""
        for seed, (_, model) in enumerate(paper.ARRIVALS):
            name = f"undisturbed-{seed}"
            train(self._order(model, seed, self._folder, name, paced=False), 0.0)
            self._expected[str(seed)] = (self._folder / f"{name}.result").read_text()

    async def once(self, profile: str, slot: int | None = None) -> Total:
        """The workload under a profile, elastic or in slots."""
        self._passes += 1
        folder = self._folder / f"pass-{self._passes}"
        folder.mkdir()
        make_driver = partial(
            ProcessDriver, warm=True, preload=_PRELOAD, logger=logging.getLogger("benchmarks.elastic")
        )
        async with Pool(folder, (virtual_node(paper.GPUS),), make_driver, profile=profile) as pool:
            await self._warm(pool, folder)
            begin = time.monotonic()
            for number, (at_s, model) in enumerate(paper.ARRIVALS):
                await asyncio.sleep(max(0.0, begin + at_s / self._scale - time.monotonic()))
                request = Request(slot or 1, max_gpus=None if slot else paper.GPUS, preemptible=slot is None)
                speeds = tuple(paper.STEPS / paper.training_s(model, n) for n in range(1, paper.GPUS + 1))
                order = self._order(model, number, folder, str(number))
                pool.submit(_run(str(number), order, request, Estimate(throughput=speeds)))
            names = [str(number) for number in range(len(paper.ARRIVALS))]
            courses = await pool.completed(*names)
        total_s = max(course.finalised for course in courses) - begin
        resized = sum(len(course.left) for course in courses)
        done = [[step for step, *_ in notes(folder / f"{name}.notes")] for name in names]
        return Total(
            total_s,
            resized,
            sum(len(steps) - len(set(steps)) for steps in done),
            sum(len(set(range(self._steps)) - set(steps)) for steps in done),
            sum((folder / f"{name}.result").read_text() != self._expected[name] for name in names),
        )

    async def _warm(self, pool: Pool, folder: Path) -> None:
        """Wait until the warm interpreter has imported everything: a run that starts warm says so."""
        end = time.monotonic() + _WARM_UP_S
        number = 0
        while time.monotonic() < end:
            number += 1
            name = f"warm-{number}"
            order = self._order("resnet-50", 0, folder, name, paced=False)
            pool.submit(_run(name, order, Request(1)))
            [course] = await pool.completed(name)
            if course.record is not None and course.record.warm:
                return
        raise RuntimeError("the warm interpreter did not become ready")


def _run(name: str, order: Order, request: Request, estimate: Estimate = UNKNOWN) -> Run:
    env = {VARIABLE: order.text()}
    return Run(name, module("benchmarks._elastic_training"), request, env, estimate=estimate)


async def measure(bench: Bench, repeats: int, contenders: dict[str, tuple[str, int | None]]) -> dict[str, list[Total]]:
    """All passes by contender; in each repeat every contender once, in random order."""
    found: dict[str, list[Total]] = {name: [] for name in contenders}
    chance = random.Random(1)
    bench.undisturbed()
    for _ in range(repeats):
        for name in chance.sample(list(contenders), k=len(contenders)):
            done = await bench.once(*contenders[name])
            found[name].append(done)
            print(f"{name:>16}: {done.total_s:.2f} s, {done.resized} resizes", file=sys.stderr)
    return found


def claims_of(found: dict[str, list[Total]]) -> list[Claim]:
    """Medians are compared with the best static division; results and steps of all passes are counted."""
    medians = {name: statistics.median(one.total_s for one in passes) for name, passes in found.items()}
    best = min(value for name, value in medians.items() if name not in OURS)
    everything = [one for passes in found.values() for one in passes]
    claims = [below(f"{name}: total time / best static", medians[name] / best, 1.0) for name in OURS if name in found]
    return [
        *claims,
        at_most("steps that are missing", sum(one.lost for one in everything), 0),
        at_most("results unlike the undisturbed run's", sum(one.different for one in everything), 0),
    ]


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="under a minute: adaptive and the best static division once, scale 60")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=40.0, help="all seconds and steps are divided by it")
    options = parser.parse_args()
    contenders: dict[str, tuple[str, int | None]] = {name: (name, None) for name in OURS}
    contenders |= {f"static, {slot}": ("fifo", slot) for slot in SLOTS}
    repeats, scale = options.repeats, options.scale
    if options.quick:
        repeats, scale = 1, 60.0
        contenders = {name: contenders[name] for name in ("adaptive", "static, 3")}
    with tempfile.TemporaryDirectory(prefix="prefect-gpu-elastic-") as folder:
        found = asyncio.run(measure(Bench(Path(folder), scale), repeats, contenders))
    details = {
        "scale": scale,
        "median_s": {
            name: round(statistics.median(one.total_s for one in passes), 2) for name, passes in found.items()
        },
        "median_unscaled_s": {
            name: round(scale * statistics.median(one.total_s for one in passes)) for name, passes in found.items()
        },
        "simulated_s": {name: round(paper.run(*how).makespan_s) for name, how in contenders.items()},
        "paper_s": {"f-scheduling": paper.PAPER_S} | {f"static, {slot}": s for slot, s in paper.STATIC_S.items()},
        "resizes": {name: [one.resized for one in passes] for name, passes in found.items()},
        "steps_done_twice": sum(one.again for passes in found.values() for one in passes),
        "load_of_the_machine": os.getloadavg()[0],
        "all": {name: [asdict(one) for one in passes] for name, passes in found.items()},
    }
    return report("elastic", claims_of(found), details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
