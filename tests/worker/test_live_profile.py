"""The worker takes no profile that it does not know, and none that would silently ignore what owners are promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.session import PoolSession


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"profile": "best"}, "profile='best' is not known"),
        ({"profile": "fifo", "quota": "lab"}, "quota='lab' with profile='fifo' is not allowed.*PROFILE=adaptive"),
        ({"profile": "drf", "quota": "lab"}, "quota='lab' with profile='drf' is not allowed"),
    ],
)
def test_a_worker_does_not_start_under_such_a_profile(settings: dict[str, str], said: str, tmp_path: Path) -> None:
    nobody: Any = None
    with pytest.raises(ValueError, match=said):
        PoolSession(nobody, GpuSettings(state_dir=tmp_path / "state", **settings), print)
    assert not (tmp_path / "state").exists(), "before it has touched anything"
