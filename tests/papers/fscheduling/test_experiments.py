"""F-scheduling's experiment: elastic jobs beside static slots."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.fscheduling import experiments as fscheduling


@pytest.mark.parametrize("slot", fscheduling.STATIC_S)
def test_the_calibrated_throughputs_give_the_printed_totals_of_static_slots(slot: int) -> None:
    assert fscheduling.run("fifo", slot).makespan_s == pytest.approx(fscheduling.STATIC_S[slot], abs=1.0)


def test_elastic_jobs_are_done_earlier_than_in_any_static_slots() -> None:
    results = fscheduling.run("f-scheduling")
    assert results.jobs == 4
    assert results.makespan_s < min(fscheduling.STATIC_S.values())
    assert max(outcome.starts for outcome in results.outcomes) > 1
