"""The pressure of a node. The files are made up: this machine cannot measure bandwidth, and its waits are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_gpu.runtime.telemetry.pressure import PressureMeter


class Machine:
    """A made-up tree with the names and formats of the kernel's."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 100.0

    def waited(self, microseconds: int) -> None:
        folder = self.root / "proc/pressure"
        folder.mkdir(parents=True, exist_ok=True)
        line = "avg10=1.00 avg60=0.00 avg300=0.00 total="
        (folder / "cpu").write_text(f"some {line}{microseconds}\nfull {line}0\n")

    def moved(self, group: str, *domains: str) -> None:
        for number, count in enumerate(domains):
            folder = self.root / "sys/fs/resctrl" / group / f"mon_data/mon_L3_0{number}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "mbm_total_bytes").write_text(count + "\n")

    def meter(self, memory_bps: float = 0.0) -> PressureMeter:
        return PressureMeter(memory_bps, self.root, lambda: self.now)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_part_of_the_time_in_which_somebody_waited_for_a_processor(machine: Machine) -> None:
    machine.waited(5_000_000)
    meter = machine.meter()
    assert meter.read() is None
    machine.now += 2.0
    machine.waited(6_500_000)
    assert meter.read() == pytest.approx(0.75)


def test_bandwidth_counts_where_it_is_measured(machine: Machine) -> None:
    machine.waited(0)
    machine.moved(".", "1000", "500")
    machine.moved("batch", "100")
    machine.moved("batch/mon_groups/one", "100")  # which the group above counts already
    meter = machine.meter(memory_bps=1000.0)
    meter.read()
    machine.now += 2.0
    machine.moved(".", "1600", "700")
    machine.moved("batch", "500")
    assert meter.read() == pytest.approx(0.6)


def test_without_a_known_bandwidth_the_most_that_was_seen_stands_for_it(machine: Machine) -> None:
    meter = machine.meter()
    seen = []
    for count in ("0", "1000", "1500"):
        machine.moved(".", count)
        seen.append(meter.read())
        machine.now += 1.0
    assert seen == [None, 1.0, 0.5]


def test_a_counter_that_is_unavailable_is_left_out(machine: Machine) -> None:
    machine.moved(".", "Unavailable")
    machine.waited(0)
    meter = machine.meter()
    meter.read()
    machine.now += 1.0
    machine.waited(250_000)
    assert meter.read() == pytest.approx(0.25)


def test_a_machine_that_counts_nothing_says_nothing(machine: Machine) -> None:
    meter = machine.meter()
    assert [meter.read(), meter.read()] == [None, None]
