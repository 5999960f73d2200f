"""What is counted of waiting runs hardly depends on the machine; what is timed does, and is not asked here."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.quick import quick


@pytest.mark.full
@pytest.mark.timeout(900)
def test_runs_that_wait_and_train_cost_few_writes() -> None:
    told = quick("waiting")
    counted = {claim["name"]: claim for claim in told["claims"] if "writes" in claim["name"] or "log" in claim["name"]}
    assert len(counted) == 2
    asked = json.dumps([counted, told["sqlite"]["requests_of_trainings"]], indent=1)  # in full
    for name, claim in counted.items():
        # A busy machine stretches a training of 5 s, and its progress is written every 2 s.
        assert claim["holds"] or ("writes" in name and claim["value"] <= 30.0), asked
    assert told["sqlite"]["idle"]["waiting"] > 200, "the copies were taken in"
