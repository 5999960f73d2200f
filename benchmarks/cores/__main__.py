"""Core tuning and the eliminator on real processes, through the real controller; no Prefect.

Tuning (CODA §V.B): four input pipelines feed a small training. Each number of cores is tried, a run for each; then one
run is left to the scheduler. *Best* is the least number with which the step rate is within 3 % of the highest. Two
cores make that easy: any answer is within one core of the best, and only the number of measurements says something.

Eliminator (§V.D): a training's step rate alone, beside a flow that copies memory without end, and the same with the
flow slowed down. Two cases. *apart*: each has cores of its own, so that only the memory's bandwidth is between them; on
some machines (this one's two cores have more of it than they can use) that is too little to speak of, and then nothing
is claimed. *on its cores*: training asked for all cores, and the flow runs on some of them.

Every part is repeated; medians. Other load on the machine blurs everything here.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._claims import Claim, at_least, at_most, command_line, report
from benchmarks._host.drivers import WarmDriver
from benchmarks.cores.trainings import PIPELINES
from benchmarks.gpu.machine import Machine, this_machine
from benchmarks.gpu.pool import Job, KitPool, warm_driver
from prefect_gpu.scheduling.cores.throttle import ThrottleByStepRate
from prefect_gpu.scheduling.cores.tuning import CoreTuning
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.profiles import Profile, get_profile
from prefect_gpu.training import protocol

_SAME = 0.97
_LEAST_LOSS = 0.1  # below this the eliminator does not act, and there is nothing to restore


class CoresPool(KitPool):
    """A pool of the kit that runs the trainings of this benchmark."""

    trainings = "benchmarks.cores.trainings"

    async def until_training(self, name: str) -> None:
        """Wait until a run trains."""
        await self.until(lambda: self.trains(name), f"{name} to train")

    async def until_launched(self, name: str) -> None:
        """Wait until a run's process exists."""

        def exists() -> bool:
            run = self.controller.runs.get(name)
            return run is not None and run.handle is not None

        await self.until(exists, f"the process of {name}")

    async def enough(self, name: str) -> list[float]:
        """Let a training end; when its steps ended, in Unix seconds.

        Raises:
            RunFailed: It failed.
        """
        await self.controller.instruct(name, protocol.STOP, {"reason": "measured"})
        await self.completed(name)
        return list(self.outcome(name).marks["step_at"])


class Bench:
    """What all parts share."""

    def __init__(self, machine: Machine, folder: Path, driver: WarmDriver, quick: bool) -> None:
        self.machine, self.quick = machine, quick
        self._folder, self._driver, self._pools = folder, driver, 0

    def pool(self, profile: Profile | None = None) -> CoresPool:
        """A pool of its own for each part: nothing is known from another."""
        self._pools += 1
        return CoresPool(self.machine, self._folder / str(self._pools), self._driver, profile=profile)

    @property
    def cores(self) -> int:
        """Cores of the machine, as far as they are tried."""
        return min(16, len(self.machine.cpus))


def _rate(step_at: list[float], begin: float, end: float) -> float:
    """Median of the steps in each second of a time."""
    whole = int(end - begin)
    counts = [sum(begin + second <= at < begin + second + 1 for at in step_at) for second in range(whole)]
    return statistics.median(counts) if counts else 0.0


async def tuning(bench: Bench, pipeline: str) -> dict[str, Any]:
    """Every number of cores, then the tuner, once."""
    parameters = {"work": 4, "batch": 4, "loaders": max(2, bench.cores)}
    rates: dict[int, float] = {}
    span = 3.0 if bench.quick else 8.0
    async with bench.pool() as pool:
        for cores in range(1, bench.cores + 1):
            run_id = pool.submit_job(Job(f"{pipeline}-{cores}", pipeline, parameters, Request(cpus=cores)))
            await pool.until_training(run_id)
            await asyncio.sleep(span + 1.5)
            at = await pool.enough(run_id)
            rates[cores] = _rate(at, at[-1] - span, at[-1])
    best = min(cores for cores, rate in rates.items() if rate >= _SAME * max(rates.values()))
    async with bench.pool() as pool:
        reactions = pool.controller.scheduler.profile.reactions
        needs = pool.controller.scheduler.state.learned.cores.needs
        (tuner,) = [one for one in reactions if isinstance(one, CoreTuning)]
        run_id = pool.submit_job(Job("tuned", pipeline, parameters))
        await pool.until_training(run_id)
        for _ in range(480):
            await asyncio.sleep(0.25)
            if run_id in needs:
                break
        found = needs.get(run_id)
        steps = tuner._searches[run_id].tuner.measurements
        await pool.enough(run_id)
    return {"steps_per_s": rates, "best": best, "found": found, "measurements": steps}


def _profile(relieved: bool) -> Profile:
    profile = get_profile("adaptive")
    if relieved:
        return profile
    others = tuple(one for one in profile.reactions if not isinstance(one, ThrottleByStepRate))
    return replace(profile, reactions=others)


async def beside_a_hammer(bench: Bench, training: Job, hammer: Job, relieved: bool) -> float:
    """The training's step rate beside the flow, as a part of its rate before the flow began."""
    alone_s, settles_s, measured_s = (5.0, 9.0, 3.0) if bench.quick else (12.0, 30.0, 12.0)
    async with bench.pool(_profile(relieved)) as pool:
        run_id = pool.submit_job(training)
        await pool.until_training(run_id)
        await asyncio.sleep(2.0 + alone_s)
        begun = asyncio.get_running_loop().time()
        flow = pool.submit_job(hammer)
        await pool.until_launched(flow)
        waited = asyncio.get_running_loop().time() - begun
        await asyncio.sleep((settles_s if relieved else 4.0) + measured_s)
        total = asyncio.get_running_loop().time() - begun
        at = await pool.enough(run_id)
        await pool.controller.stop(flow, 0.0)
    alone = _rate(at, at[-1] - total - alone_s, at[-1] - total - waited)
    return _rate(at, at[-1] - measured_s, at[-1]) / alone


async def eliminating(bench: Bench, case: str, repeats: int) -> dict[str, Any]:
    """Both, with and without the eliminator."""
    half = max(1, bench.cores // 2)
    flow = Job("hammer", "hammer", {"mebibytes": 512, "processes": half}, Request(0, cpus=half))
    if case == "apart":
        training = Job("stream", "stream", {"mebibytes": 64}, Request(cpus=max(1, bench.cores - half)))
    else:
        parameters = {"work": 4, "batch": 4, "loaders": max(2, bench.cores)}
        training = Job("archives", "archives", parameters, Request(cpus=bench.cores))
    beside, relieved = [], []
    for _ in range(repeats):
        beside.append(await beside_a_hammer(bench, training, flow, relieved=False))
        relieved.append(await beside_a_hammer(bench, training, flow, relieved=True))
    hurt, helped = statistics.median(beside), statistics.median(relieved)
    restored = (helped - hurt) / (1.0 - hurt) if hurt < 1.0 else None
    return {"beside": beside, "relieved": relieved, "lost": 1.0 - hurt, "restored": restored}


async def measure(quick: bool) -> tuple[list[Claim], dict[str, Any]]:
    """All parts."""
    claims: list[Claim] = []
    details: dict[str, Any] = {"tuning": {}, "eliminator": {}}
    repeats = 1 if quick else 3
    machine = this_machine(virtual=True)
    with tempfile.TemporaryDirectory(prefix="cores-") as folder:
        async with warm_driver() as driver:
            bench = Bench(machine, Path(folder), driver, quick)
            details["machine"] = machine.words
            for name in ["archives"] if quick else list(PIPELINES):
                print(f"tuning {name} …", file=sys.stderr)
                found = [await tuning(bench, name) for _ in range(repeats)]
                details["tuning"][name] = found
                away = [abs(one["found"] - one["best"]) if one["found"] else bench.cores for one in found]
                claims.append(at_most(f"{name}: cores from the best", statistics.median(away), 1))
                claims.append(at_most(f"{name}: measurements", max(one["measurements"] for one in found), 4))
            for case in ["on its cores"] if quick else ["apart", "on its cores"]:
                print(f"eliminator, {case} …", file=sys.stderr)
                result = details["eliminator"][case] = await eliminating(bench, case, repeats)
                if quick:
                    continue  # too short for a claim
                if result["lost"] >= _LEAST_LOSS and result["restored"] is not None:
                    claims.append(at_least(f"{case}: part of the lost step rate restored", result["restored"], 0.8))
                elif case != "apart":
                    claims.append(at_least(f"{case}: part of the step rate lost", result["lost"], _LEAST_LOSS))
    return claims, details


def main() -> int:
    """Run the benchmark; the exit code."""
    parser = command_line(__doc__, quick="one pipeline and one case, once: under a minute")
    arguments = parser.parse_args()
    claims, details = asyncio.run(measure(arguments.quick))
    return report("cores", claims, details, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
