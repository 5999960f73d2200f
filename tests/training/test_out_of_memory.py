"""A run that shares its device and runs out of its part: it is told at once, and the next try has the device alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu import training_run
from prefect_gpu.training.limits.device_lock import DeviceLock
from prefect_gpu.training.protocol import ENV_LOCKS, ENV_MEMORY, ENV_SHARED, OUT_OF_MEMORY


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lock file of a device that this run shares; no device is named, so that the process itself is not limited."""
    file = str(tmp_path / "device.lock")
    monkeypatch.setenv(ENV_LOCKS, json.dumps([file]))
    monkeypatch.setenv(ENV_SHARED, "1")
    monkeypatch.setenv(ENV_MEMORY, str(1 << 30))
    return file


def fail(error: Exception) -> None:
    """A try that ends with an error in its first step."""
    with pytest.raises(type(error)), training_run(steps=1) as run:
        for _ in run.steps():
            raise error


def complete(run: Any) -> None:
    for _ in run.steps():
        run.report(loss=1.0)
    with run.saving():
        pass


def test_the_next_try_waits_until_it_is_alone_before_it_prepares(pool: Any, device: str) -> None:
    neighbour = DeviceLock([device], shared=True)
    assert neighbour.try_acquire()
    fail(MemoryError("no room"))
    pool.wait_for(lambda: pool.data(OUT_OF_MEMORY))
    assert pool.data(OUT_OF_MEMORY) == [{"error": "MemoryError: no room"}]

    def leave() -> None:
        pool.wait_for(lambda: pool.phases[-1] == "preparing*")
        assert neighbour.held, "it was not disturbed"
        neighbour.release()

    leaver = threading.Thread(target=leave)
    leaver.start()
    with training_run(steps=1) as run:
        assert not neighbour.held, "its preparation has begun after the neighbour was done"
        newcomer = DeviceLock([device], shared=True)
        assert not newcomer.try_acquire(), "nobody may join it"
        complete(run)
    leaver.join()
    assert newcomer.try_acquire()
    newcomer.release()
    pool.wait_for(lambda: pool.phases[-1] == "finished")
    waited = ["preparing", "preparing*", "preparing"]
    assert pool.phases == ["preparing", "training", *waited, "training", "saving", "finished"]


@pytest.mark.parametrize("why", ["another error", "it shares with nobody"])
def test_other_failures_change_nothing(pool: Any, device: str, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "another error":
        fail(ValueError("lr"))
    else:
        monkeypatch.delenv(ENV_MEMORY)
        fail(MemoryError())
    neighbour = DeviceLock([device], shared=True)
    assert neighbour.try_acquire()
    with training_run(steps=1) as run:
        complete(run)
    neighbour.release()
    pool.wait_for(lambda: pool.phases[-1] == "finished")
    assert pool.data(OUT_OF_MEMORY) == []
