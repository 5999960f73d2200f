"""The live part: the real controller, real processes, and what earlier runs in the same pool have shown."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks._host.pool import Pool, Run, module
from benchmarks.kinds.training import SHARE
from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import FinishedRun
from prefect_gpu.estimation.submission import known_of
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.learning.estimates import to_plan
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request
from prefect_gpu.storage.finished import finished_run

KINDS = {"virtual-0": "slow", "virtual-1": "slow", "virtual-2": "fast", "virtual-3": "slow"}
"""One fast device among three slow ones, and not the first one."""

STEPS = {"compute": 60, "reader": 60}

LEARNED = (0.5, 0.75, 1.0)
"""What is learned from: runs of so many steps, as parts of those that come later."""

SLOWER = {"compute": SHARE["fast"] / SHARE["slow"], "reader": 1.0}
"""How many times as long each program takes on a slow device, by how it is made."""

GAP_S = 5.0
"""Mean seconds between two submissions."""

_PRELOAD = (
    "numpy",
    "prefect_gpu.training",
    "prefect_gpu.training.channel.client",
    "prefect_gpu.training.limits.usage",
    "prefect_gpu.training.channel.wire",
)


@dataclass(frozen=True)
class Passed:
    """One pass of the workload.

    Attributes:
        jct_s: From submission to end, of each run.
        kinds: By program: on which kinds its runs were.
    """

    jct_s: list[float]
    kinds: dict[str, list[str]]


WARM_UP_S = 4.0
"""For the interpreter that later ones are forked from."""


def _driver() -> ProcessDriver:
    return ProcessDriver(warm=True, preload=_PRELOAD, logger=logging.getLogger("benchmarks.kinds"))


def _node() -> Node:
    devices = tuple(Device(name, kind, 1 << 30, virtual=True) for name, kind in KINDS.items())
    return Node("here", devices, (0,))


def _run(name: str, program: str, steps: int, estimate: Estimate = UNKNOWN, request: Request | None = None) -> Run:
    known = {"flow_name": program, "parameters": {"steps": steps}}
    argv = (*module("benchmarks.kinds.training"), program, str(steps), json.dumps(KINDS))
    asked = request or Request(cpus=1)
    return Run(name, argv, replace(asked, kind=program), known=known, estimate=estimate)


async def learn(folder: Path, scale: float) -> list[FinishedRun]:
    """Runs of both programs on whatever device was free: what is learned from."""
    from prefect_gpu.scheduling.model.kinds import Wants

    async with Pool(folder, (_node(),), _driver, name="learn") as pool:
        await asyncio.sleep(WARM_UP_S)
        runs = [
            _run(f"{program}-{kind}-{at}", program, round(_steps(program, scale) * part), request=Request(
                cpus=1, wants=Wants((kind,)),
            ))
            for at, part in enumerate(LEARNED) for program in STEPS for kind in ("fast", "slow")
        ]  # fmt: skip
        pool.submit(*runs)
        courses = await pool.completed(*(run.name for run in runs))
    found = [finished_run(course.row) for course in courses if course.row is not None]
    return [one for one in found if one is not None]


def _steps(program: str, scale: float) -> int:
    return max(10, round(STEPS[program] * scale))


def estimate_of(estimator: Estimator, run: Run, *, kinds: bool) -> Estimate:
    """What the scheduler is told of a run, with or without what is known of kinds."""
    parameters = dict(run.known["parameters"])
    known = known_of(str(run.known["flow_name"]), parameters, run.request, {}, "slow")
    told = to_plan(estimator.estimate(known))
    if not kinds:
        return told
    by_kind = estimator.by_kind(known, ["fast", "slow"])
    factors = tuple((kind, one.median / by_kind["slow"].median) for kind, one in by_kind.items())
    return replace(told, kind="slow", by_kind=factors)


async def once(folder: Path, estimator: Estimator, scale: float, seed: int, *, kinds: bool, count: int) -> Passed:
    """The workload: runs of both programs, in random order, a little apart."""
    chance = random.Random(seed)
    programs = [program for program in STEPS for _ in range(count // 2)]
    chance.shuffle(programs)
    async with Pool(folder, (_node(),), _driver, name="kinds") as pool:
        await asyncio.sleep(WARM_UP_S)
        begin: dict[str, float] = {}
        for number, program in enumerate(programs):
            run = _run(f"{number}-{program}", program, _steps(program, scale))
            begin[run.name] = time.monotonic()
            pool.submit(replace(run, estimate=estimate_of(estimator, run, kinds=kinds)))
            await asyncio.sleep(chance.expovariate(1.0 / (GAP_S * scale)))
        courses = await pool.completed(*begin)
    on: dict[str, list[str]] = {program: [] for program in STEPS}
    for course in courses:
        assert course.row is not None
        on[course.row.flow_name].append(course.row.device_kind or "")
    return Passed([course.finalised - begin[course.run.name] for course in courses], on)


def speeds(estimator: Estimator) -> Mapping[str, float]:
    """By program: how many times as long it takes on a slow device, as learned."""
    found = {}
    for program, steps in STEPS.items():
        told = estimator.by_kind(known_of(program, {"steps": steps}, Request(cpus=1), {}, "slow"), ["fast", "slow"])
        found[program] = told["slow"].median / told["fast"].median
    return found


def mean_of(passes: Sequence[Passed]) -> float:
    """Mean job completion time of some passes, in seconds."""
    return statistics.fmean(jct_s for one in passes for jct_s in one.jct_s)
