"""The pool on a GPU, as its benchmark has it, on a virtual device: a real server, a real worker, real trainings."""

from __future__ import annotations

import pytest

from tests.benchmarks.quick import quick


@pytest.mark.needs("pytorch")
def test_interrupted_trainings_have_the_result_of_undisturbed_ones() -> None:
    found = quick("gpu_pool", "--virtual", "--part", "interrupted", "--part", "loaders")
    assert found["failed"] == {} and found["parts"].keys() == {"interrupted", "loaders"} and found["virtual"] is True
    assert len(found["claims"]) == 6 and all(claim["holds"] for claim in found["claims"]), found
    assert found["parts"]["interrupted"]["from_kill_to_next_step_s"] > 0.0
