"""What is counted of waiting runs hardly depends on the machine; what is timed does, and is not asked here."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.quick import quick

_TRAININGS = 2  # of --quick


@pytest.mark.full
@pytest.mark.timeout(900)
def test_runs_that_wait_and_train_cost_few_writes() -> None:
    told = quick("waiting")
    writes, log = (claim for claim in told["claims"] if "writes" in claim["name"] or "log" in claim["name"])
    requests = told["sqlite"]["requests_of_trainings"]
    # The longer a busy machine takes for a training, the more often its progress is brought up to date.
    updates = requests["worker"].get("PATCH /artifacts/ID", 0) / _TRAININGS
    assert writes["value"] - updates <= 20.0, json.dumps(requests, indent=1)  # all of it: pytest shortens objects
    assert log["holds"], log
    assert told["sqlite"]["idle"]["waiting"] > 200, "the copies were taken in"
