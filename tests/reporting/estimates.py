"""Rows of runs that had been estimated."""

from __future__ import annotations

from typing import Any

from prefect_gpu.storage.history import HistoryRow
from tests.reporting.rows import finished

GIB = 2.0**30


def estimated(
    at: int, *, flow: str = "train", expected_s: float = 10.0, trained_s: float = 10.0, **fields: Any
) -> HistoryRow:
    """A run whose training was expected to take `expected_s` (within a factor of 2) and 1 GiB (which it took)."""
    estimate = {
        "launching_s": [1.0, 0.5, 2.0],
        "training_s": [expected_s, expected_s / 2, expected_s * 2],
        "saving_s": [1.0, 0.5, 2.0],
        "memory_bytes": [GIB, GIB / 2, 2 * GIB],
        "from_runs": 3,
        "basis": f"3 finished runs of {flow}",
    }
    values: dict[str, Any] = {
        "flow_name": flow, "trained_s": trained_s, "steps_done": 100, "rss_peak_bytes": int(GIB), "estimate": estimate,
        "parameters": {"epochs": 10, "model": {"width": 2 ** (3 + at % 4)}}, "features": {"steps": 100},
    }  # fmt: skip
    return finished(f"{flow}-{at}", float(at * 60), **(values | fields))
