"""Does the tuner find the cores that a training's input pipeline can use?

A small network behind a ``DataLoader`` whose processes unpack and distort pictures. First every number of cores is
tried, a run for each (in a quick run one core and all of them). Then one run is left to the scheduler's core tuning
(CODA §V.B, :mod:`prefect_gpu.scheduling.cores.tuning`), which follows the use of the GPU where NVML tells one of 10 %
and more, and the step rate otherwise, and changes the cores of the running processes. *Best* is the least number with
which the step rate is within 3 % of the highest.

What it cannot tell: one pipeline is no proof (:mod:`benchmarks.cores` has four). A step of the search takes some
seconds here, not the paper's 90. On fewer than four cores every answer is within one core of the best, so that
nothing is claimed of it; on a virtual device the network needs cores, too.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace
from typing import Any

from benchmarks._claims import Claim, at_most
from benchmarks.gpu.pool import Job, Outcome
from benchmarks.gpu.scale import Part, Scale
from prefect_gpu.scheduling.cores.tuning import REPORTS, CoreTuning
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.profiles import Profile, get_profile

_SAME = 0.97
_MOST_STEPS = 4
_STEP_S = 8.0
_ENOUGH_S = 150.0  # a search that has not ended by then has failed


async def measure(scale: Scale) -> Part:
    """Every number of cores, then the tuner."""
    rates: dict[int, float] = {}
    async with scale.pool("cores-all") as pool:
        for cores in _counts(scale):
            job = Job(f"cores-{cores}", "pipeline", _pipeline(scale, 2.5 if scale.quick else 6.0), Request(cpus=cores))
            rates[cores] = _rate((await pool.run([job]))[0])
    best = min(cores for cores, rate in rates.items() if rate >= _SAME * max(rates.values()))
    found = await _tuned(scale)
    claims = []
    if found["measurements"] is not None:
        claims.append(at_most("core counts that the tuner measured", found["measurements"], _MOST_STEPS))
    if len(scale.machine.cpus) >= 4 and not scale.quick:
        away = abs(found["cores"] - best) if found["cores"] is not None else float("inf")
        claims.append(at_most("cores between the tuner's choice and the best", away, 1))
    claims.append(Claim("the tuner came to an end", float(found["ended"]), "== 1", found["ended"]))
    words = [
        "steps a second by cores: " + ", ".join(f"{cores}: {rate:.1f}" for cores, rate in rates.items()),
        f"best {best}, tuner {found['cores']} after {found['measurements']} measurements",
    ]
    return Part(claims, {"steps_per_s": rates, "best": best, "tuner": found}, words)


def _counts(scale: Scale) -> list[int]:
    most = len(scale.machine.cpus)
    if not scale.quick:
        return list(range(1, min(most, 16) + 1))
    return sorted({1, min(most, 16)})


def _pipeline(scale: Scale, seconds: float) -> dict[str, Any]:
    loaders = max(2, min(8, len(scale.machine.cpus) // 2))  # fewer than the cores, so that there is a best number
    return {"seconds": seconds, "loaders": loaders, "batch": 16 if scale.machine.virtual else 64, "work": 8, "width": 8}


def _rate(outcome: Outcome) -> float:
    """Steps a second in the second half of the training; median, since others use the machine, too."""
    if not outcome.completed:
        raise RuntimeError(f"the pipeline failed: {outcome.tail}")
    at = outcome.marks["step_at"]
    middle = (at[0] + at[-1]) / 2
    late = [moment for moment in at if moment >= middle]
    chunks = 5
    size = max(1, len(late) // chunks)
    spans = [late[start + size] - late[start] for start in range(0, len(late) - size, size)]
    return size / statistics.median(spans) if spans else len(at) / (at[-1] - at[0] + 1e-9)


def _short_steps(profile: Profile, quick: bool) -> tuple[Profile, CoreTuning]:
    """The profile with a tuning whose steps are short, and that tuning."""
    [old] = [one for one in profile.reactions if isinstance(one, CoreTuning)]
    tuning = CoreTuning(_STEP_S / 4, reports=3) if quick else CoreTuning(_STEP_S, REPORTS)
    return replace(profile, reactions=tuple(tuning if one is old else one for one in profile.reactions)), tuning


async def _tuned(scale: Scale) -> dict[str, Any]:
    profile, tuning = _short_steps(get_profile("adaptive"), scale.quick)
    async with scale.pool("cores-tuned", profile=profile) as pool:
        needs = pool.controller.scheduler.state.learned.cores.needs
        run_id = pool.submit_job(Job("tuned", "pipeline", _pipeline(scale, 2 * _ENOUGH_S)))
        measurements = None
        for _ in range(int(_ENOUGH_S / 0.25)):
            await asyncio.sleep(0.25)
            search = tuning._searches.get(run_id)
            measurements = search.tuner.measurements if search is not None else measurements
            if run_id in needs:
                break
        best = needs.get(run_id)
        run = pool.controller.runs.get(run_id)
        given = len(run.record.placement.cpus) if run is not None else None
        await pool.controller.stop(run_id, 1.0)
        await pool.over(run_id)
    by = "nothing" if search is None else "step rate" if search.by_speed else "use of the GPU"
    return {"ended": best is not None, "cores": best, "given": given, "measurements": measurements, "by": by}
