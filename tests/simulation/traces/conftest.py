"""A folder with the tables that some formats need beside the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.traces import writing


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for traces, with DeepShare's tables and Gavel's throughputs above it."""
    top = tmp_path_factory.mktemp("published")
    for name in ("jobs", "traces"):
        (top / name).mkdir()
    (top / "jobs" / "isolated_thp.csv").write_text(writing.ISOLATED_CSV)
    (top / "jobs" / "shared_thp_ratio.csv").write_text(writing.SHARED_CSV)
    (top / "jobs" / "total_samples_trained.csv").write_text(writing.SAMPLES_CSV, encoding="utf-8")
    (top / "simulation_throughputs.json").write_text(writing.THROUGHPUTS_JSON)
    return top / "traces"
