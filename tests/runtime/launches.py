"""A launched run as the controller follows it, for tests of what looks at one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers.base import RunHandle
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Request

PLACE = Placement("here", ("virtual-0",), (0,))


def launched(
    run_id: str = "a",
    place: Placement = PLACE,
    request: Request | None = None,
    *,
    name: str = "sly fox",
    phase: str = "launching",
    handle: RunHandle | None = None,
    folder: Path = Path("nowhere"),
    **record: Any,
) -> Launch:
    """A launch; more about it goes into its record."""
    noted = RunRecord(run_id, name, "pool", "q", "token", request or Request(), place, **record)
    return Launch(noted, folder, handle, phase)
