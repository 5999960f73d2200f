"""Running out of memory teaches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_gpu.estimation.program.features import flatten
from prefect_gpu.estimation.program.memory import GROWTH, as_needed, least_memory, submission_key
from prefect_gpu.estimation.runs import MEMORY_BYTES, STEP_S, FinishedRun, Known

_DONE = FinishedRun("run", Known("train", {"width": 64}), {MEMORY_BYTES: 1e9, STEP_S: 1.0})
_KEY = submission_key(flatten(_DONE.known)[0])


def _failed(reached: float, **parameters: int) -> FinishedRun:
    known = replace(_DONE.known, parameters={"width": 64, **parameters})
    return FinishedRun("oom", known, {MEMORY_BYTES: reached, STEP_S: 9.0}, completed=False, out_of_memory=True)


_CANCELLED = replace(_DONE, completed=False)

# runs, oldest first -> bytes that the next one submitted alike needs at least
LEAST: dict[str, tuple[list[FinishedRun], float | None]] = {
    "no failure": ([_DONE], None),
    "one failure": ([_failed(4e9)], 4e9 * GROWTH),
    "two in a row at the same limit": ([_failed(4e9), _failed(4e9)], 4e9 * GROWTH**2),
    "two in a row, the second higher": ([_failed(4e9), _failed(6e9)], 6e9 * GROWTH),
    "the second far higher": ([_failed(4e9), _failed(20e9)], 20e9 * GROWTH),
    "a success since": ([_failed(4e9), _DONE], None),
    "a failure since a success": ([_DONE, _failed(4e9)], 4e9 * GROWTH),
    "a cancelled one since": ([_failed(4e9), _CANCELLED], 4e9 * GROWTH),
    "another submission": ([_failed(4e9, batch_size=8)], None),
}


@pytest.mark.parametrize("runs, least", LEAST.values(), ids=LEAST)
def test_failures_in_a_row_raise_what_the_next_is_given(runs: list[FinishedRun], least: float | None) -> None:
    found = least_memory(runs).get(_KEY)
    assert found is None if least is None else found == pytest.approx(least)


def test_a_failure_is_learned_as_what_it_would_have_needed_and_nothing_else() -> None:
    assert as_needed(_failed(4e9)).measured == {MEMORY_BYTES: 4e9 * GROWTH}
    assert as_needed(_DONE) is _DONE


def test_what_a_run_declared_later_does_not_tell_submissions_apart() -> None:
    told = replace(_DONE.known, declared={"steps": 100})
    assert submission_key(flatten(told)[0]) == _KEY
