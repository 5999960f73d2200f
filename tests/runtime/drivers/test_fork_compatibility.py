"""What every run is given never makes a start cold, whichever library was preloaded; what a library reads does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from prefect_gpu.runtime.drivers.fork_compatibility import ForkCompatibility
from prefect_gpu.runtime.launch.run_environment import channel_environment, run_environment
from prefect_gpu.scheduling.model.cluster import Device


@pytest.fixture(params=["torch", "numpy", "xgboost", "cupy", "numba"])
def preloaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ForkCompatibility:
    """After a library was preloaded. It is a stand-in: only its name is looked at."""
    environment = dict(os.environ)
    compatibility = ForkCompatibility(environment)
    monkeypatch.setitem(sys.modules, request.param, ModuleType(request.param))
    compatibility.loaded()
    return compatibility


@pytest.mark.parametrize("virtual", [True, False])
def test_the_environment_of_a_run_can_be_had_warm(preloaded: ForkCompatibility, virtual: bool, tmp_path: Path) -> None:
    own = run_environment(
        run_id="run",
        devices=[Device("GPU-1", "a GPU", 8 << 30, virtual)],
        cpus=[1],
        checkpoints=str(tmp_path),
        locks=tmp_path,
    )
    own |= channel_environment(
        token="token", url="ws://127.0.0.1:1", file=tmp_path / "channel.json", gated=True, keep_best=True, stays=True
    )
    assert preloaded.difference({**os.environ, **own}, str(tmp_path)) is None


def test_what_a_library_reads_as_it_is_loaded_makes_the_start_cold(
    preloaded: ForkCompatibility, tmp_path: Path
) -> None:
    found = preloaded.difference({**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}, str(tmp_path))
    assert found is not None and "OMP_WAIT_POLICY" in found
