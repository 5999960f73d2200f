"""A Prefect that lacks what is used of it is refused as the worker starts, and not when a run goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.workers.base import BaseWorker

from prefect_gpu.worker import GpuWorker
from prefect_gpu.worker.compatible import TESTED, is_tested, lacking

ROOT = Path(__file__).parents[2]


async def test_a_prefect_that_lacks_something_is_named_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_INTEGRATIONS_GPU_STATE_DIR", str(tmp_path / "state"))
    worker = GpuWorker("pool")
    assert lacking(worker) == []
    monkeypatch.delattr(BaseWorker, "_submit_adhoc_run")
    with pytest.raises(
        SystemExit, match=r"Prefect 3\.\S+ is installed, and lacks .*:BaseWorker\._submit_adhoc_run"
    ) as told:
        await worker.start()
    assert f"pip install 'prefect{TESTED}'" in str(told.value)
    assert not (tmp_path / "state").exists(), "before anything is touched"


def test_the_package_asks_for_the_versions_that_are_tested() -> None:
    assert f'"prefect{TESTED}"' in (ROOT / "pyproject.toml").read_text()
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("prefect=="))
    assert is_tested(pinned.removeprefix("prefect==")) and not is_tested("3.9.0") and not is_tested("3.8.7")
