"""Flows that the benchmarks run. They import what a small training flow imports: Prefect, and nothing heavy."""

from __future__ import annotations

import os
import time
from pathlib import Path

from prefect import flow


@flow
def first_line(folder: str) -> None:
    """Writes down when its first line was reached."""
    reached = time.time()
    from prefect.runtime import flow_run

    (Path(folder) / f"{flow_run.id}.tmp").write_text(repr(reached))
    os.replace(Path(folder) / f"{flow_run.id}.tmp", Path(folder) / str(flow_run.id))
