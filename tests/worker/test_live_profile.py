"""The worker takes no profile that would silently be another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.session import PoolSession


@pytest.mark.parametrize("profile", ["priority", "drf", "coda-drf", "best"])
def test_a_worker_does_not_start_under_such_a_profile(profile: str, tmp_path: Path) -> None:
    nobody: Any = None
    with pytest.raises(ValueError, match=f"profile='{profile}'"):
        PoolSession(nobody, GpuSettings(profile=profile, state_dir=tmp_path / "state"), print)
    assert not (tmp_path / "state").exists(), "before it has touched anything"
