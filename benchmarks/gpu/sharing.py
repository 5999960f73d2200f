"""Do trainings end sooner together if they share the device?

Liquid's three sets (§6.2, table of total times): 8 small CNNs, 4 NeuMF-like recommenders, and 4 mixed (in a quick run
only CNNs, four of them); each set with
whole devices, one run after the other; the same with each run prepared behind the one before it (not in a quick run);
and with the device shared by all of them at once, each with an equal part of its memory and the cap that belongs to it.
Total time is from the submission of a set to its last end. Where there is a GPU its use and its memory are sampled
through NVML.

What it cannot tell: the networks are small, so that one alone leaves much of a large GPU idle; large ones gain
little or lose. Processes share by time slices (no MPS). On a virtual device, sharing is sharing the CPU: what is
gained there comes from other cores and from loading and saving beside a training; no claim is made of it. Liquid's
totals were measured on other GPUs with other jobs; nothing is asked here.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from benchmarks.gpu.machine import sampled
from benchmarks.gpu.pool import Job, Past
from benchmarks.gpu.scale import Part, Scale
from prefect_gpu.scheduling.model.jobs import Request


async def measure(scale: Scale) -> Part:
    """Run each set in all ways, in random order."""
    ways_of_one = ["exclusive", "shared"] if scale.quick else ["exclusive", "prepared", "shared"]
    past = None if scale.quick else await _past(scale)
    chance = random.Random(2)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for turn in range(scale.rounds):
        for name, programs in _sets(scale).items():
            for way in chance.sample(ways_of_one, k=len(ways_of_one)):
                one = await _total(scale, f"{name}-{way}-{turn}", programs, way, past)
                found.setdefault(name, {}).setdefault(way, []).append(one)
    figures, words = {}, []
    for name, ways in found.items():
        totals = {way: statistics.median(one["total_s"] for one in turns) for way, turns in ways.items()}
        ratio = totals["shared"] / totals["exclusive"]
        middle = {way: min(turns, key=lambda one: abs(one["total_s"] - totals[way])) for way, turns in ways.items()}
        figures[name] = {"total_s": totals, "shared_over_exclusive": ratio, "usage": middle}
        use = [middle[way]["device_util_mean"] for way in ("exclusive", "shared")]
        told = "" if None in use else f", mean use {use[0]:.0%} and {use[1]:.0%}"
        prepared = f"{totals['prepared']:6.1f} s prepared, " if "prepared" in totals else ""
        words.append(
            f"{name:9} {totals['exclusive']:6.1f} s one after the other, {prepared}{totals['shared']:6.1f} s shared "
            f"(x {ratio:.2f}){told}"
        )
    return Part([], {"sets": figures}, words)


def _sets(scale: Scale) -> dict[str, list[str]]:
    if scale.quick:
        return {"CNN x 4": ["cnn"] * 4}
    return {"CNN x 8": ["cnn"] * 8, "NeuMF x 4": ["neumf"] * 4, "mixed x 4": ["cnn", "neumf"] * 2}


def _steps(scale: Scale) -> int:
    if scale.quick:
        return 8
    return 40 if scale.machine.virtual else 20


async def _past(scale: Scale) -> Past:
    """One run of each program, for those that are prepared behind others."""
    async with scale.pool("sharing-past", prescheduling=False) as pool:
        return Past(await pool.run([Job(one, one, getattr(scale, one)(_steps(scale))) for one in ("cnn", "neumf")]))


async def _total(scale: Scale, name: str, programs: list[str], way: str, past: Past | None) -> dict[str, Any]:
    steps = _steps(scale)
    part = int(scale.machine.device.memory_bytes * 0.95) // len(programs)
    request = Request(exclusive=False, gpu_memory_bytes=part) if way == "shared" else Request()
    jobs = [
        Job(f"{program}-{number}", program, getattr(scale, program)(steps, seed=number), request)
        for number, program in enumerate(programs)
    ]
    # Who shares is not prepared behind others anyway: see Prescheduling.
    known = past if way == "prepared" else None
    async with scale.pool(name, prescheduling=way == "prepared", past=known) as pool, sampled(scale.machine) as usage:
        began = time.monotonic()
        outcomes = await pool.run(jobs)
        total_s = time.monotonic() - began
    failed = [one.tail for one in outcomes if not one.completed]
    if failed:
        raise RuntimeError(f"{name}: a training failed: {failed[0]}")
    return {"total_s": total_s, "together": _most_together(outcomes), **usage.figures}


def _most_together(outcomes: list[Any]) -> int:
    """How many trained at the same time, at most."""
    moments = [(one.marks["first_step"], 1) for one in outcomes] + [(one.marks["trained"], -1) for one in outcomes]
    now = most = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most
