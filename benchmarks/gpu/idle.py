"""How long does the device stand idle between two trainings?

Equal small trainings one after the other on one device, each in a process of its own that loads its data, opens the
GPU, trains, and saves: with heartbeats of 5 s and 1 s (Liquid's baseline, §6.3; not in a quick run), with events, and
with events and pre-scheduling (§6.1). Idle is the time from the last step of one training to the first of the next, as
the trainings write it down themselves. The margin of pre-scheduling begins at its default.

What it cannot tell: launching is short here, since PyTorch is in a warm interpreter and the data is made up; a training
that imports and loads for a minute gains more. Heartbeats delay only what the scheduler hears; a real framework with
heartbeats has other delays, too. Nothing competes with the trainings for the host. On a virtual device preparing costs
the training cores that a GPU would leave free.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks._claims import at_least, at_most
from benchmarks.gpu.pool import Job, Outcome, Past
from benchmarks.gpu.scale import Part, Scale

_IN_TIME_S = 0.05
MODES: dict[str, dict[str, Any]] = {
    "heartbeat 5 s": {"heartbeat_s": 5.0, "prescheduling": False},
    "heartbeat 1 s": {"heartbeat_s": 1.0, "prescheduling": False},
    "events": {"prescheduling": False},
    "events and pre-scheduling": {"prescheduling": True},
}
OURS = "events and pre-scheduling"


async def measure(scale: Scale) -> Part:
    """Run all modes, in random order in each round."""
    count, part = (3, 2) if scale.quick else (6, 1)
    steps = (60 if scale.machine.virtual else 30) // part
    modes = {name: mode for name, mode in MODES.items() if not (scale.quick and "heartbeat_s" in mode)}
    parameters = scale.cnn(steps)
    async with scale.pool("idle-first", prescheduling=False) as pool:
        first = [Job(f"first-{number}", "cnn", parameters) for number in range(1 if scale.quick else 2)]
        past = Past(await pool.run(first))
    found: dict[str, list[list[Outcome]]] = {name: [] for name in modes}
    chance = random.Random(1)
    for turn in range(scale.rounds):
        for name in chance.sample(list(modes), k=len(modes)):
            async with scale.pool(f"idle-{turn}-{name}", past=past, **modes[name]) as pool:
                jobs = [Job(f"job-{number}", "cnn", parameters) for number in range(count)]
                found[name].append(await pool.run(jobs))
    figures = {name: _figures(turns) for name, turns in found.items()}
    ours = figures[OURS]
    claims = []
    if ours["gap_in_time_median_s"] is not None:
        claims.append(
            at_most("median gap where the next run was prepared in time, s", ours["gap_in_time_median_s"], _IN_TIME_S)
        )
    if not scale.quick:  # a few hand-overs prove nothing
        claims.append(at_least("part of the hand-overs prepared in time", ours["in_time"], 0.9))
    words = [
        f"{name:26} idle {one['idle_mean_s']:6.3f} s between two trainings (median {one['idle_median_s']:.3f}), "
        f"{one['runs_per_minute']:.1f} runs a minute"
        for name, one in figures.items()
    ]
    return Part(claims, {"trainings": count, "rounds": scale.rounds, "modes": figures}, words)


def _figures(turns: Sequence[Sequence[Outcome]]) -> dict[str, Any]:
    gaps: list[float] = []
    in_time: list[bool] = []
    spans: list[float] = []
    for outcomes in turns:
        runs = sorted((one for one in outcomes if one.marks), key=lambda one: float(one.marks["first_step"]))
        if len(runs) < len(outcomes):
            raise RuntimeError(f"a training failed: {[one.tail for one in outcomes if not one.marks]}")
        spans.append((runs[-1].marks["saved"] - runs[0].marks["first_step"]) / len(runs))
        for before, after in itertools.pairwise(runs):
            gaps.append(max(0.0, after.marks["first_step"] - before.marks["trained"]))
            # In time: it stood at its gate when the one before it left the device.
            in_time.append(bool(after.row["prepared_behind"]) and after.marks["prepared"] <= before.marks["trained"])
    timely = [gap for gap, one in zip(gaps, in_time, strict=True) if one]
    return {
        "idle_mean_s": statistics.fmean(gaps),
        "idle_median_s": statistics.median(gaps),
        "idle_most_s": max(gaps),
        "gap_in_time_median_s": statistics.median(timely) if timely else None,
        "in_time": sum(in_time) / len(in_time),
        "runs_per_minute": 60.0 / statistics.fmean(spans),
        "launching_median_s": statistics.median(one.row["prepared_s"] for turn in turns for one in turn),
        "training_median_s": statistics.median(one.row["trained_s"] for turn in turns for one in turn),
        "gaps_s": [round(gap, 4) for gap in gaps],
    }
