"""Rigid jobs that may be stopped, as their benchmark measures them: the same trace for all policies, and no clock."""

from __future__ import annotations

import pytest

from tests.benchmarks.quick import quick
from tests.components import traces_folder


@pytest.mark.needs("traces")
def test_ours_is_the_best_on_rigid_jobs() -> None:
    said = quick("frontier", "--only", "cluster", "--traces", str(traces_folder()))
    assert len(said["claims"]) == 20
    assert [claim["name"] for claim in said["claims"] if not claim["holds"]] == []
