"""When is a resize worth it?"""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling.elastic.listing1 import ElasticJob, worth_applying

A = ElasticJob("a", 1, 4, (0, 2.0, 3.0, 3.5, 3.9))
B = ElasticJob("b", 1, 4, (0, 1.0, 1.9, 2.7, 3.4))

# before, after, worth the restarts
WORTH = {
    "a rise by one step per second is worth it": ({"a": 1}, {"a": 2}, True),
    "a smaller rise is not": ({"a": 2}, {"a": 4}, False),
    "a sum that falls is not": ({"a": 2, "b": 2}, {"a": 1, "b": 3}, False),
    "a waiting job that starts is always worth it": ({"a": 4}, {"a": 1, "b": 1}, True),
    "nothing new is not worth it": ({"a": 2, "b": 2}, {"a": 2, "b": 2}, False),
    "a job that was listed with no GPU counts as waiting": ({"a": 2, "b": 0}, {"a": 2, "b": 1}, True),
    "a job that would stop lowers the sum": ({"a": 2, "b": 1}, {"a": 3}, False),
}


@pytest.mark.parametrize("case", WORTH)
def test_what_is_worth_a_restart(case: str) -> None:
    before, after, expected = WORTH[case]
    assert worth_applying([A, B], before, after) is expected
