"""Pollux' world as its benchmark measures it: no clock is read, so the claims hold on every machine."""

from __future__ import annotations

import pytest

from tests.benchmarks.quick import quick
from tests.components import traces_folder


@pytest.mark.needs("traces")
def test_the_authors_policies_come_out_and_ours_is_better_than_pollux() -> None:
    said = quick("frontier.pollux", "--traces", str(traces_folder()))
    assert len(said["claims"]) == 16
    assert [claim["name"] for claim in said["claims"] if not claim["holds"]] == []
