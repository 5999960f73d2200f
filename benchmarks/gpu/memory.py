"""Does the pool learn from a run that ran out of memory, and does the next try fit?

Runs whose memory grows with their batch, one after the other on a shared device. Each is granted what the pool knows:
a little more than the largest run so far, which is too little for the next batch. A run that runs out of memory is
noted as one that would have needed 1.5 times what it had reached (``estimation/program/memory.py``), submitted
again alike, and granted that.

What it cannot tell: how good the estimates are before anything fails (:mod:`benchmarks.estimation` measures that; here
they are too low on purpose), nor how a framework behaves that cannot be capped.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks._claims import Claim, at_most
from benchmarks.gpu.pool import Job, Outcome
from benchmarks.gpu.scale import Part, Scale
from prefect_gpu.estimation.program.features import flatten
from prefect_gpu.estimation.program.memory import least_memory, submission_key
from prefect_gpu.estimation.runs import MEMORY_BYTES, FinishedRun, Known
from prefect_gpu.scheduling.model.jobs import Request

_MOST_TRIES = 5
_SPARE = 1.1  # over the largest run so far


async def measure(scale: Scale) -> Part:
    """Double the batch again and again."""
    # Rows of 1024 numbers of 4 bytes, each some 20 times over; the largest batch takes less than half of the device.
    unit = (
        16_384 if scale.machine.virtual else min(65_536, int(0.4 * scale.machine.device.memory_bytes) // (8 * 81_920))
    )
    batches = [unit << number for number in range(1 if scale.quick else 2 if scale.machine.virtual else 4)]
    history: list[FinishedRun] = []
    tries: list[dict[str, Any]] = []
    async with scale.pool("memory") as pool:
        first = (await pool.run([_job(batches[0] // 2, None)]))[0]
        history.append(_finished(first, None, batches[0] // 2))
        for batch in batches:
            for number in range(1, _MOST_TRIES + 1):
                granted = _granted(history, batch, scale)
                outcome = (await pool.run([_job(batch, granted)]))[0]
                history.append(_finished(outcome, granted, batch))
                tries.append({"batch": batch, "try": number, "granted_bytes": granted, "ended": _how(outcome)})
                if not outcome.out_of_memory:
                    break
    failed = {one["batch"] for one in tries if one["ended"] == "out of memory"}
    done = {one["batch"] for one in tries if one["ended"] == "completed"}
    healed = bool(failed) and failed <= done
    most = max((one["try"] for one in tries if one["batch"] in failed), default=0)
    claims = [
        Claim("runs that ran out of memory completed when they were granted more", float(healed), "== 1", healed),
        at_most("tries until such a run fitted, at most", most, _MOST_TRIES),
    ]
    words = [
        f"batch {one['batch']:>8}, try {one['try']}: granted {one['granted_bytes'] / 2**20:7.0f} MiB, {one['ended']}"
        for one in tries
    ]
    return Part(claims, {"tries": tries}, words)


def _job(batch: int, granted: int | None) -> Job:
    request = Request() if granted is None else Request(exclusive=False, gpu_memory_bytes=granted)
    return Job(f"batch-{batch}", "growing", {"steps": 1, "batch": batch}, request)


def _known(batch: int) -> Known:
    return Known("growing", {"batch": batch})


def _finished(outcome: Outcome, granted: int | None, batch: int) -> FinishedRun:
    reached = outcome.measured_bytes() or 0
    if outcome.out_of_memory and granted is not None:
        reached = max(reached, granted)  # the sampler may have missed the last moment; all that was granted was used
    return FinishedRun(
        outcome.job.name,
        _known(batch),
        {MEMORY_BYTES: float(reached)},
        completed=outcome.completed,
        out_of_memory=outcome.out_of_memory,
        ended_at=time.time(),
    )


def _granted(history: list[FinishedRun], batch: int, scale: Scale) -> int:
    """What a run of this batch needs, for all that is known."""
    largest = max(run.measured[MEMORY_BYTES] for run in history if run.completed)
    taught = least_memory(history).get(submission_key(flatten(_known(batch))[0]), 0.0)
    return min(scale.machine.device.memory_bytes, int(max(_SPARE * largest, taught)))


def _how(outcome: Outcome) -> str:
    return "out of memory" if outcome.out_of_memory else str(outcome.row["outcome"])
