"""The file of devices that are out of service, which workers and commands of a state folder share."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prefect_gpu.runtime.devices.cordons import Cordoned, Cordons


def test_two_who_change_it_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads what there is, and writes that with its own."""
    read = Cordons.read
    Cordons(tmp_path).add({"GPU-0": "by hand"})

    def slowly(self: Cordons) -> dict[str, Cordoned]:
        found = read(self)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(Cordons, "read", slowly)
    with ThreadPoolExecutor(3) as at_once:
        for number in (1, 2):
            at_once.submit(Cordons(tmp_path).add, {f"GPU-{number}": "it has fallen off the bus"})
        at_once.submit(Cordons(tmp_path).remove, "GPU-0")
    assert Cordons(tmp_path).read().keys() == {"GPU-1", "GPU-2"}
