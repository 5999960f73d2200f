"""Do trainings of mixed sizes end sooner than before, and than under SRSF? Sixty real processes on four devices.

A sweep arrives at random at a machine with four virtual devices: runs on one, two and four of them, most of them short
and some ten times as long, so that whoever is chosen decides who waits. All may be stopped, and carry on from their
last checkpoint. Each contender has each drawn sweep once, in random order:

- ``adaptive``: the default profile;
- ``srsf``: shortest remaining service first, which may stop runs as well (Tiresias, Muri);
- ``before``: ``adaptive`` as the package had it before runs that may be stopped were chosen as a whole. Its whole
  package schedules, from its commit.

    python -m benchmarks.mixed_sweep [--json] [--quick] [--repeats N] [--runs N]

What is real: the controller, the channel, warm processes, checkpoints on disk, stopping and starting, and in each step
one step of SGD on scikit-learn's digits, whose result must be the same to the last bit as that of an undisturbed run.
What is not: the devices are virtual, and the rest of a step's time is *slept*. All are told how long each run trains:
what is compared is the choice, not the learning. No Prefect takes part: what its engine adds to a stop is measured by
``benchmarks.move``.

*JCT* is from a run's submission until its last process has been finalised.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks._claims import Claim, at_most, below, command_line, report
from benchmarks._elastic_training import VARIABLE, Order, train
from benchmarks._host.former import ROOT, former_version
from benchmarks._host.pool import Pool, Run, module, notes, virtual_node
from prefect_gpu.papers.baselines.profiles import PROFILES as BASELINES
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request

DEVICES = 4
BEFORE = "b9a5ab7"
"""The last commit whose ``adaptive`` compared runs in pairs."""
_SIZES = (1, 1, 1, 2, 2, 4)
_STEP_S = 0.1
_SHORT_S, _LONG_S = 1.5, 25.0  # of training; drawn evenly on a logarithmic scale
_BUSY = 0.7  # the sweep has arrived after this part of the time that its work takes on all devices
_PRELOAD = (
    "numpy",
    "sklearn.datasets",
    "prefect_gpu.training",
    "prefect_gpu.training.channel.client",
    "prefect_gpu.training.limits.usage",
    "prefect_gpu.training.channel.wire",
)
_WARM_UP_S = 60.0


@dataclass(frozen=True)
class Drawn:
    """One training of a sweep."""

    at_s: float
    gpus: int
    steps: int


def draw(seed: int, runs: int, longest_s: float = _LONG_S) -> list[Drawn]:
    """A sweep, by the order of arrival."""
    chance = random.Random(seed)
    sizes = [chance.choice(_SIZES) for _ in range(runs)]
    steps = [round(_SHORT_S * (longest_s / _SHORT_S) ** chance.random() / _STEP_S) for _ in range(runs)]
    work_s = sum(gpus * count * _STEP_S for gpus, count in zip(sizes, steps, strict=True)) / DEVICES
    times = sorted(chance.uniform(0.0, _BUSY * work_s) for _ in range(runs))
    return [Drawn(*one) for one in zip(times, sizes, steps, strict=True)]


@dataclass(frozen=True)
class Passed:
    """One sweep under one contender.

    Attributes:
        mean_s: Mean JCT.
        p99_s: Its 99th percentile.
        makespan_s: From the first submission until the last run was finalised.
        stops: How often runs were stopped in all.
        most_stops: How often the run that was stopped most was.
        lost: Steps that are missing.
        different: Runs whose result is not that of the undisturbed one.
    """

    mean_s: float
    p99_s: float
    makespan_s: float
    stops: int
    most_stops: int
    lost: int
    different: int


def _order(number: int, steps: int, folder: Path, name: str, step_s: float = 0.0) -> Order:
    result, noted = str(folder / f"{name}.result"), str(folder / f"{name}.notes")
    return Order(steps=steps, seed=number, result=result, notes=noted, step_s=(step_s,) * DEVICES if step_s else ())


def _run(name: str, order: Order, request: Request, estimate: Estimate = UNKNOWN) -> Run:
    return Run(name, module("benchmarks._elastic_training"), request, {VARIABLE: order.text()}, estimate=estimate)


async def play(profile: str, sweep: list[Drawn], folder: Path) -> Passed:
    """A sweep under a profile, in this process."""
    make_driver = partial(ProcessDriver, warm=True, preload=_PRELOAD, logger=logging.getLogger("benchmarks"))
    chosen = BASELINES.get(profile, profile)
    async with Pool(folder, (virtual_node(DEVICES),), make_driver, profile=chosen) as pool:
        launching_s, saving_s = await _warm(pool, folder)
        begin = time.monotonic()
        for number, one in enumerate(sweep):
            await asyncio.sleep(max(0.0, begin + one.at_s - time.monotonic()))
            known = Estimate(one.steps * _STEP_S, launching_s=launching_s, saving_s=saving_s)
            order = _order(number, one.steps, folder, str(number), _STEP_S)
            pool.submit(_run(str(number), order, Request(one.gpus, preemptible=True), known))
        courses = await pool.completed(*map(str, range(len(sweep))))
        makespan_s = max(course.finalised for course in courses) - begin
    took = [course.ended - course.submitted for course in courses]
    done = [{step for step, *_ in notes(folder / f"{number}.notes")} for number in range(len(sweep))]
    different = 0
    for number, one in enumerate(sweep):
        train(_order(number, one.steps, folder, f"undisturbed-{number}"), 0.0)
        results = [(folder / f"{name}.result").read_text() for name in (number, f"undisturbed-{number}")]
        different += results[0] != results[1]
    return Passed(
        statistics.mean(took),
        statistics.quantiles(took, n=100, method="inclusive")[98],
        makespan_s,
        sum(len(course.left) for course in courses),
        max(len(course.left) for course in courses),
        sum(len(set(range(one.steps)) - steps) for one, steps in zip(sweep, done, strict=True)),
        different,
    )


async def _warm(pool: Pool, folder: Path) -> tuple[float, float]:
    """Wait until the warm interpreter has imported everything; for how long a run launches, and saves, from then on."""
    end = time.monotonic() + _WARM_UP_S
    number = 0
    while time.monotonic() < end:
        number += 1
        name = f"warm-{number}"
        pool.submit(_run(name, _order(0, 10, folder, name), Request(1)))
        [course] = await pool.completed(name)
        if course.record is not None and course.record.warm and course.row is not None:
            return course.row.prepared_s or 0.0, course.row.saved_s or 0.0
    raise RuntimeError("the warm interpreter did not become ready")


class Bench:
    """Plays sweeps, each in a process of its own, so that an earlier package can schedule as well."""

    def __init__(self, folder: Path, runs: int, longest_s: float) -> None:
        self._folder, self._runs, self._longest_s = folder, runs, longest_s
        self._passes = 0
        self.packages: dict[str, Path] = {}

    def contenders(self, wanted: Mapping[str, str | None]) -> dict[str, str]:
        """Which profile each contender has; those whose package is not to be had are left out.

        Args:
            wanted: The commit of each contender's package; None: this one.
        """
        found = {}
        for name, commit in wanted.items():
            package: Path | None = ROOT
            if commit is not None:
                package = former_version(commit, self._folder / name)
                if package is not None:
                    shutil.copytree(ROOT / "benchmarks", package / "benchmarks")
            if package is not None:
                self.packages[name] = package
                found[name] = "adaptive" if commit else name
        return found

    def once(self, contender: str, profile: str, seed: int) -> Passed:
        """One sweep under one contender."""
        self._passes += 1
        folder = self._folder / f"pass-{self._passes}"
        folder.mkdir()
        package = self.packages[contender]
        argv = [sys.executable, "-m", "benchmarks.mixed_sweep", "--play", profile, "--seed", str(seed)]
        argv += ["--runs", str(self._runs), "--longest", str(self._longest_s), "--folder", str(folder)]
        env = {**os.environ, "PYTHONPATH": str(package)}
        done = subprocess.run(argv, cwd=package, env=env, stdout=subprocess.PIPE, check=True)
        return Passed(**json.loads(done.stdout.splitlines()[-1]))


def claims_of(found: Mapping[str, list[Passed]]) -> list[Claim]:
    """Medians, over the sweeps, of the mean JCT divided by another contender's for the same sweep."""
    ours, claims = found["adaptive"], []
    for other, name, asked in (("before", "the release before", 0.9), ("srsf", "SRSF", 1.0)):
        if other in found:
            ratios = [mine.mean_s / theirs.mean_s for mine, theirs in zip(ours, found[other], strict=True)]
            claim = below if asked == 1.0 else at_most
            claims.append(claim(f"mean JCT / that of {name}, median", statistics.median(ratios), asked))
    everything = [one for passes in found.values() for one in passes]
    return [
        *claims,
        at_most("stops of the run that was stopped most", max(one.most_stops for one in ours), 3),
        at_most("steps that are missing", sum(one.lost for one in everything), 0),
        at_most("results unlike the undisturbed run's", sum(one.different for one in everything), 0),
    ]


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="under a minute: ten short runs, which compare nothing")
    parser.add_argument("--repeats", type=int, default=3, help="drawn sweeps")
    parser.add_argument("--runs", type=int, default=60, help="trainings of a sweep")
    parser.add_argument("--longest", type=float, default=_LONG_S, help="seconds of the longest training")
    parser.add_argument("--seed", type=int, default=1, help="of the first sweep")
    parser.add_argument("--play", metavar="PROFILE", help="play one sweep in this process, and print what it gave")
    parser.add_argument("--folder", type=Path, help="with --play: where")
    options = parser.parse_args()
    if options.play:
        passed = asyncio.run(play(options.play, draw(options.seed, options.runs, options.longest), options.folder))
        print(json.dumps(asdict(passed)))
        return 0
    wanted: dict[str, str | None] = {"adaptive": None, "srsf": None, "before": BEFORE}
    if options.quick:
        options.runs, options.repeats, options.longest = 10, 1, 6.0
        wanted = {"adaptive": None}
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.runs, options.longest)
        contenders = bench.contenders(wanted)
        found: dict[str, list[Passed]] = {name: [] for name in contenders}
        for repeat in range(options.repeats):
            for name in chance.sample(list(contenders), k=len(contenders)):
                passed = bench.once(name, contenders[name], options.seed + repeat)
                found[name].append(passed)
                print(f"{options.seed + repeat}, {name:>8}: {asdict(passed)}", file=sys.stderr)
    details = {name: [asdict(one) for one in passes] for name, passes in found.items()}
    return report("mixed_sweep", claims_of(found), details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
