"""What is counted of waiting runs does not depend on the machine; what is timed does, and is not asked here."""

from __future__ import annotations

import pytest

from tests.benchmarks.quick import quick


@pytest.mark.full
@pytest.mark.timeout(900)
def test_runs_that_wait_and_train_cost_few_writes() -> None:
    told = quick("waiting")
    counted = {claim["name"]: claim for claim in told["claims"] if "writes" in claim["name"] or "log" in claim["name"]}
    assert len(counted) == 2
    assert all(claim["holds"] for claim in counted.values()), [counted, told["sqlite"]["requests_of_trainings"]]
    assert told["sqlite"]["idle"]["waiting"] > 200, "the copies were taken in"
