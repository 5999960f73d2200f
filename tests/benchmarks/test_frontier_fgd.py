"""FGD's world as its benchmark measures it; only one claim, of a placement's milliseconds, is the clock's."""

from __future__ import annotations

import pytest

from tests.benchmarks.quick import quick
from tests.components import traces_folder


@pytest.mark.needs("traces")
def test_the_authors_figures_come_out_and_ours_allocates_more() -> None:
    said = quick("frontier.fgd", "--traces", str(traces_folder()))
    assert len(said["claims"]) == 7
    assert [claim["name"] for claim in said["claims"] if not claim["holds"] and "ms a" not in claim["name"]] == []
