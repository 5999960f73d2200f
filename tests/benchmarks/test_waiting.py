"""What is counted of waiting runs hardly depends on the machine; what is timed does, and is not asked here."""

from __future__ import annotations

import pytest

from tests.benchmarks.quick import quick


@pytest.mark.full
@pytest.mark.timeout(900)
def test_runs_that_wait_and_train_cost_few_writes() -> None:
    told = quick("waiting")
    counted = {claim["name"]: claim for claim in told["claims"] if "writes" in claim["name"] or "log" in claim["name"]}
    assert len(counted) == 2
    # Of one training, with the worker's start. On a busy machine it lasts longer than 5 s, and is shown more often.
    most = {name: (30.0 if "writes" in name else 1000.0) for name in counted}
    assert {name: claim["value"] for name, claim in counted.items() if claim["value"] > most[name]} == {}
    assert told["sqlite"]["idle"]["waiting"] > 200, "the copies were taken in"
