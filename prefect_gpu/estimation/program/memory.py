"""Running out of memory teaches: the run needed more than it had reached, and the next try must be given more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefect_gpu.estimation.program.features import Value, flatten
from prefect_gpu.estimation.runs import MEMORY_BYTES, FinishedRun

GROWTH = 1.5  # what a run is given after it ran out of memory, relative to what it had reached

Key = tuple[tuple[str, Value], ...]


def submission_key(facts: Mapping[str, Value]) -> Key:
    """What two runs share that were submitted alike: their parameters, and what they asked for."""
    return tuple(sorted((name, value) for name, value in facts.items() if name[0] != "@"))


def as_needed(run: FinishedRun) -> FinishedRun:
    """A run that ran out of memory, as if it had measured what it would have needed; any other run as it is."""
    reached = run.measured.get(MEMORY_BYTES)
    if not run.out_of_memory or reached is None:
        return run
    return FinishedRun(
        run.run_id,
        run.known,
        {MEMORY_BYTES: reached * GROWTH},
        completed=False,
        out_of_memory=True,
        ended_at=run.ended_at,
        steps=run.steps,
    )


def least_memory(runs: Sequence[FinishedRun]) -> dict[Key, float]:
    """Bytes below which a run that is submitted like one of these would run out of memory again.

    A failure counts until a run that was submitted alike has completed. Each failure in a row multiplies by
    :data:`GROWTH`, so that after a few tries any need is reached.

    Args:
        runs: Of one program, oldest first.
    """
    least: dict[Key, float] = {}
    for run in runs:
        if not (run.out_of_memory or run.completed):
            continue
        key = submission_key(flatten(run.known)[0])
        if run.completed:
            least.pop(key, None)
        elif MEMORY_BYTES in run.measured:
            least[key] = max(run.measured[MEMORY_BYTES], least.get(key, 0.0)) * GROWTH
    return least
