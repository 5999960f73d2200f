"""What a run may report: what is known and makes sense stays as it is, and nothing else comes in."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.runtime.launch.report_schema import checked, checked_time
from prefect_gpu.training import protocol

INF = math.inf
KINDS = (protocol.PHASE, protocol.PROGRESS, protocol.USAGE, protocol.OUT_OF_MEMORY, protocol.CHECKPOINT)
NAMES = "phase step steps batch_size features waiting loss metrics losses steps_per_s nonfinite_step cpu_fraction "
NAMES += "rss_bytes rss_peak_bytes net_bytes_per_s device_util device_memory_bytes error path bytes seconds unknown"

# what comes, and what is left of it; None: nothing
TABLE: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "an unknown kind": ("dance", {"step": 1}, None),
    "an unknown phase": ("phase", {"phase": "dancing", "step": 1}, None),
    "unknown fields": ("usage", {"rss_bytes": 1, "colour": "red"}, {"rss_bytes": 1}),
    "beyond all numbers": ("progress", {"step": 2, "steps": INF, "loss": INF, "steps_per_s": -INF}, {"step": 2}),
    "whole numbers beyond all bounds": ("usage", {"rss_bytes": 10**400, "cpu_fraction": 1}, {"cpu_fraction": 1}),
    "no counts": ("progress", {"step": 1.5, "steps": True, "nonfinite_step": -1}, {}),
    "a diverging loss": (
        "progress",
        {"loss": 1e300, "losses": [[1, -1e300]]},
        {"loss": 1e100, "losses": [[1, -1e100]]},
    ),
    "no points": ("progress", {"losses": [[1], 2, [1, None], ["a", 1], [3, 0.5]]}, {"losses": [[3, 0.5]]}),
    "a metric that is undefined": ("progress", {"metrics": {"a": None, "b": 1}}, {"metrics": {"a": None, "b": 1}}),
    "percent are no share": ("usage", {"device_util": 37, "device_memory_bytes": -1}, {}),
    "features": (
        "phase",
        {"phase": "training", "features": {"a": 1, "b": "c", "d": [1], "e": INF, "f": True}},
        {"phase": "training", "features": {"a": 1, "b": "c", "f": True}},
    ),
    "texts where numbers should be": ("checkpoint", {"step": "1", "error": {"a": 1}, "path": "x"}, {"path": "x"}),
}  # fmt: skip


@pytest.mark.parametrize("kind, data, expected", TABLE.values(), ids=TABLE.keys())
def test_what_is_left_of_a_report(kind: str, data: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert checked(kind, data) == expected


def test_tables_and_texts_are_cut() -> None:
    many = {f"key {number}": number for number in range(10_000)}
    assert len((checked("progress", {"metrics": many}) or {})["metrics"]) == 100
    assert len((checked("phase", {"phase": "training", "features": many}) or {})["features"]) == 1_000
    assert len((checked("progress", {"losses": [[n, n] for n in range(9_999)]}) or {})["losses"]) == 1_024
    assert checked("out_of_memory", {"error": "x" * 10**6}) == {"error": "x" * 2_000}
    assert checked("phase", {"phase": "training", "features": {"a": "x" * 10**6}}) == {
        "phase": "training",
        "features": {},
    }


def test_a_time_that_cannot_be_is_the_workers() -> None:
    now = 1.8e9
    assert [checked_time(at, now) for at in (now - 3600, now + 60, 0.0, 1e300)] == [now - 3600, now + 60, now, now]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=9,
)


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(NAMES.split()), json_values))
def test_whatever_comes_is_small_finite_and_stays_as_it_is_when_it_comes_again(kind: str, data: dict[str, Any]) -> None:
    found = checked(kind, data)
    if found is not None:
        assert checked(kind, found) == found
        assert len(json.dumps(found, allow_nan=False)) < 200_000  # and no number is infinite
