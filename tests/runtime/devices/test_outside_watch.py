"""Programs outside the pool on GPUs. What the driver lists is made up here."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.devices.cordon_watch import CordonWatch
from prefect_gpu.runtime.devices.cordons import Cordons
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.devices.health_watch import HealthWatch
from prefect_gpu.runtime.devices.outside_watch import OutsideWatch
from prefect_gpu.runtime.telemetry.programs import Program
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device, Node

LOGGER = logging.getLogger("outside")
NOTEBOOK = Program(42, 30, "python3", "ann", certain=True)


class Watched:
    """Two GPUs of 100 bytes, and whoever is on them."""

    def __init__(self, state_dir: Path) -> None:
        self.fleet = Fleet([Node("here", (Device("GPU-0", "H100", 100), Device("GPU-1", "H100", 100)), (0,))])
        self.on: dict[str, list[Any]] = {}
        self.told: list[ev.Event] = []
        self.cordoned: list[str] = []
        self.file = Cordons(state_dir)
        self.cordons = CordonWatch(self.file, self.fleet, self, self.told.append, LOGGER)  # type: ignore[arg-type]
        self.cordons.on_cordon = lambda device, reason: self.cordoned.append(reason)
        health = HealthWatch(self.file, self.fleet, LOGGER)
        self.watch = OutsideWatch(self.fleet, self, self.cordons, health.found, LOGGER)  # type: ignore[arg-type]

    def occupants(self, device: str) -> list[Any]:
        """As the scheduler's state has them."""
        return self.on.get(device, [])

    def look(self, *programs: Program) -> list[str]:
        """These programs are on GPU-0: the devices that are in service then."""
        self.watch.heed({"GPU-0": programs, "GPU-1": []})
        return [device.id for node in self.fleet.nodes for device in node.devices]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_gpu_that_a_program_uses_is_held_back_until_that_ends(watched: Watched) -> None:
    assert watched.look(NOTEBOOK) == ["GPU-1"], "it was there before any run"
    assert watched.fleet.cordoned["GPU-0"].reason == "python3 (pid 42, of ann, 30 B) uses it outside the pool"
    [event] = watched.told
    assert isinstance(event, ev.NodesChanged) and [d.id for d in event.nodes[0].devices] == ["GPU-1"]
    assert watched.look(NOTEBOOK) == ["GPU-1"] and len(watched.told) == 1
    assert watched.look() == ["GPU-0", "GPU-1"] and len(watched.told) == 2
    assert watched.file.read() == {}, "it is nobody's decision that would outlive the worker"


def test_small_programs_do_not_count_together_they_do_and_so_does_one_whose_memory_nobody_tells(
    watched: Watched,
) -> None:
    small = [Program(pid, 6, certain=True) for pid in (1, 2)]
    assert watched.look(small[0]) == ["GPU-0", "GPU-1"]
    assert watched.look(*small) == ["GPU-1"]
    assert watched.look(Program(3, None)) == ["GPU-1"]
    assert watched.look(Program(4, 90, certain=True, own=True)) == ["GPU-0", "GPU-1"], (
        "a warm interpreter is the pool's"
    )


def test_what_a_run_leaves_behind_counts_once_it_has_had_time_to_end(watched: Watched) -> None:
    child = Program(43, 50, "loader", run="one", certain=True)
    watched.on["GPU-0"] = ["one"]
    assert watched.look(child) == ["GPU-0", "GPU-1"] and not watched.fleet.unwell
    watched.on.clear()
    assert watched.look(child) == ["GPU-0", "GPU-1"]
    assert watched.look(child) == ["GPU-1"]
    assert "left by run one" in watched.fleet.cordoned["GPU-0"].reason


def test_a_program_beside_a_run_is_told_and_the_run_keeps_its_gpu(watched: Watched) -> None:
    run, hidden = Program(41, 50, run="one", certain=True), Program(44, 50)
    watched.on["GPU-0"] = ["one"]
    assert watched.look(run, hidden) == ["GPU-0", "GPU-1"]
    assert not watched.fleet.unwell, "one whose environment nobody may read may be the run's own"
    assert watched.look(run, NOTEBOOK) == ["GPU-0", "GPU-1"]
    assert watched.fleet.unwell == {"GPU-0": "python3 (pid 42, of ann, 30 B) uses it beside the pool's run"}
    watched.look(run)
    assert not watched.fleet.unwell and not watched.told


def test_a_device_that_is_cordoned_too_stays_out_when_the_program_ends(watched: Watched) -> None:
    watched.look(NOTEBOOK)
    watched.file.add({"GPU-0": "by hand"})
    watched.cordons.look()
    assert watched.fleet.cordoned["GPU-0"].reason == "by hand"
    assert watched.cordoned == ["by hand"], "nobody has to see to what ends by itself"
    assert watched.look() == ["GPU-1"]
    watched.file.remove("GPU-0")
    watched.cordons.look()
    assert watched.look() == ["GPU-0", "GPU-1"]
