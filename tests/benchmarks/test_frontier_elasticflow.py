"""ElasticFlow's world as its benchmark measures it: no clock is read, so the claims hold on every machine."""

from __future__ import annotations

import pytest

from tests.benchmarks.quick import quick
from tests.components import traces_folder

CEILINGS = {"cluster 1 (looked at)": 0.985, "cluster 10": 0.992}


@pytest.mark.needs("traces")
def test_edf_comes_out_as_published_and_ours_keeps_its_promises() -> None:
    said = quick("frontier.elasticflow", "--traces", str(traces_folder()))
    assert len(said["claims"]) == 8
    assert [claim["name"] for claim in said["claims"] if not claim["holds"]] == []
    found = {name: round(row["ceiling"], 3) for name, row in said["satisfied, late"].items()}
    assert found == CEILINGS, "as published"
