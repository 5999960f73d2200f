"""What runs take: device time, its price, and energy, divided among those who share."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.launch.launch import Launch, Suspend
from prefect_gpu.runtime.metering.consumption import Consumption
from prefect_gpu.runtime.metering.prices import Prices
from prefect_gpu.runtime.telemetry.energy import CpuEnergy
from prefect_gpu.scheduling.model.cluster import Device, Placement
from prefect_gpu.scheduling.model.instructions import Expire, OpenGate, SetShare
from prefect_gpu.storage.row import HistoryRow
from tests.runtime.launches import launched

H100, T4, VIRTUAL = (
    Device("GPU-1", "NVIDIA H100 80GB HBM3", 80),
    Device("GPU-2", "Tesla T4", 16),
    Device("virtual-0", "virtual", 8, virtual=True),
)
KNOWN = {device.id: device for device in (H100, T4, VIRTUAL)}


class World:
    """A clock, counters, and what follows them."""

    def __init__(self, prices: Any = None, cpu: CpuEnergy | None = None) -> None:
        self.now, self.joules = 1000.0, {"GPU-1": 50.0, "GPU-2": 70.0}
        clock: Any = lambda: self.now  # noqa: E731
        self.consumption = Consumption(
            lambda ids: [KNOWN[one] for one in ids if one in KNOWN],
            Prices.of(prices),
            clock,
            counter=self.joules.get,
            cpu=cpu,
        )

    def pass_time(self, seconds: float, **joules: float) -> None:
        self.now += seconds
        for name, more in joules.items():
            self.joules[name.replace("_", "-")] += more

    def begin(self, run_id: str, *devices: str, **record: Any) -> Launch:
        launch = launched(run_id, Placement("here", devices, (0,)), **record)
        self.consumption.granted(launch, self.now)
        return launch

    def end(self, launch: Launch) -> HistoryRow:
        self.consumption.ended(launch, self.now)
        self.consumption.released(launch, self.now, False)
        return row(launch)


def row(launch: Launch) -> HistoryRow:
    return launch.history_row(outcome="completed", message="", report=ExitReport(0), devices=(), ended_at=2000.0)


def test_a_run_alone_has_all_of_its_devices() -> None:
    world = World({"H100": 3.6, "T4": 0.36})
    run = world.begin("a", "GPU-1", "GPU-2")
    world.pass_time(100.0, GPU_1=5000.0, GPU_2=1000.0)
    kept = world.end(run)
    assert (kept.device_s, kept.energy_j, kept.energy_from) == (200.0, 6000.0, "gpu")
    assert kept.cost == pytest.approx(0.1 + 0.01)
    assert world.consumption.energy_j == {"gpu": 6000.0, "cpu": 0.0}
    assert world.consumption.cost == pytest.approx(0.11)


def test_what_a_run_took_whose_time_was_over_is_not_counted_again_when_it_is_tried_again() -> None:
    world = World()
    run = world.begin("a", "GPU-1")
    world.pass_time(100.0)
    run.eviction = Expire("a", "it has held its devices for as long as it may")
    assert world.end(run).device_s == 100.0
    again = world.begin("a", "GPU-1")
    world.pass_time(10.0)
    assert world.end(again).device_s == 10.0


def test_who_shares_takes_its_part_from_when_it_shares() -> None:
    world = World(3600.0)
    one = world.begin("a", "GPU-1")
    world.pass_time(10.0, GPU_1=100.0)
    other = world.begin("b", "GPU-1")
    world.pass_time(10.0, GPU_1=100.0)  # half each
    one.record.weight = 0.25
    world.consumption.adjusted(one, SetShare("a", 0.25, "it stands still"), world.now)
    world.pass_time(10.0, GPU_1=100.0)  # one to four
    first, second = world.end(one), world.end(other)
    assert (first.device_s, first.energy_j) == (pytest.approx(17.0), pytest.approx(170.0))
    assert (second.device_s, second.energy_j) == (pytest.approx(13.0), pytest.approx(130.0))
    assert (first.cost or 0) + (second.cost or 0) == pytest.approx(30.0)  # the device is paid once


def test_who_is_prepared_behind_another_takes_nothing_before_its_gate_is_open() -> None:
    world = World()
    one, other = world.begin("a", "GPU-1"), world.begin("b", "GPU-1", behind="a", gated=True)
    world.pass_time(10.0, GPU_1=100.0)
    first = world.end(one)
    other.record.behind = None
    world.consumption.adjusted(other, OpenGate("b", "a has ended"), world.now)
    world.pass_time(5.0, GPU_1=30.0)
    second = world.end(other)
    assert (first.energy_j, second.energy_j) == (100.0, 30.0) and (first.device_s, second.device_s) == (10.0, 5.0)


def test_what_is_not_known_is_not_said() -> None:
    world = World({"H100": 1.0})
    run = world.begin("a", "GPU-1", "GPU-2")
    del world.joules["GPU-2"]  # it fell off the bus
    world.pass_time(10.0, GPU_1=100.0)
    kept = world.end(run)
    assert (kept.energy_j, kept.energy_from, kept.cost, kept.device_s) == (None, None, None, 20.0)
    virtual = world.begin("b", "virtual-0")
    world.pass_time(10.0)
    kept = world.end(virtual)
    assert (kept.energy_j, kept.energy_from, kept.device_s) == (None, None, 10.0)


@pytest.mark.parametrize("how", ["is preempted", "is suspended"])
def test_what_a_run_took_before_it_left_counts(how: str) -> None:
    world = World(3600.0)
    run = world.begin("a", "GPU-1")
    world.pass_time(10.0, GPU_1=100.0)
    if how == "is suspended":
        run.eviction = Suspend("a", "its user suspended it")
    world.consumption.ended(run, world.now)
    world.consumption.released(run, world.now, how == "is preempted")
    world.pass_time(1000.0, GPU_1=9000.0)
    again = world.begin("a", "GPU-1")
    world.pass_time(5.0, GPU_1=20.0)
    kept = world.end(again)
    assert (kept.device_s, kept.energy_j) == (15.0, 120.0) and kept.cost == pytest.approx(15.0)


def test_a_later_worker_goes_on_from_the_record() -> None:
    before = World(3600.0)
    run = before.begin("a", "GPU-1")
    before.pass_time(10.0, GPU_1=100.0)
    before.consumption.look()
    later = World(3600.0)
    later.now = before.now + 30.0  # nobody looked for so long
    later.consumption.adopted(run, later.now)
    later.pass_time(10.0, GPU_1=40.0)
    kept = later.end(run)
    assert (kept.device_s, kept.energy_j, kept.cost) == (50.0, 140.0, pytest.approx(50.0))


def test_a_later_worker_counts_from_the_grant_what_no_record_tells() -> None:
    world = World()
    run = launched("a", Placement("here", ("GPU-1",), (0,)), times={"granted": world.now - 60.0})
    world.consumption.adopted(run, world.now)
    world.pass_time(10.0)
    assert world.end(run).device_s == 70.0


def test_what_the_owner_of_a_run_has_kept_of_it_counts_and_not_what_this_worker_remembers() -> None:
    world, kept_of_it = World(3600.0), {"device_s": 40.0, "energy_j": 900.0, "energy_from": "gpu", "cost": 40.0}
    run = world.begin("a", "GPU-1")
    world.pass_time(10.0, GPU_1=100.0)
    world.consumption.ended(run, world.now)
    world.consumption.released(run, world.now, True)  # then another worker leads for a while, and lets it train on
    again = world.begin("a", "GPU-1", known={"consumed": kept_of_it})
    world.pass_time(5.0, GPU_1=20.0)
    kept = world.end(again)
    assert (kept.device_s, kept.energy_j, kept.cost) == (45.0, 920.0, pytest.approx(45.0))


class Processors(CpuEnergy):
    """At the hardware border: what the kernel would count."""

    joules, busy = 0.0, 100.0

    def read_j(self) -> float | None:
        return self.joules

    def busy_s(self) -> float | None:
        return self.busy


class Handle:
    """A process that has computed for so long."""

    seconds = 0.0

    def busy_seconds(self) -> float | None:
        return self.seconds


def test_without_a_gpu_the_processors_are_divided_by_their_time() -> None:
    cpu, handle = Processors(), Handle()
    world = World(cpu=cpu)
    run, idle = world.begin("a", "virtual-0"), world.begin("b")
    on_gpu = world.begin("c", "GPU-1")
    run.handle = handle  # type: ignore[assignment]
    on_gpu.handle = handle  # type: ignore[assignment]
    world.pass_time(10.0, GPU_1=5.0)
    cpu.joules, cpu.busy, handle.seconds = 200.0, 120.0, 5.0
    rows = {one.run_id: world.end(one) for one in (run, idle, on_gpu)}
    assert (rows["a"].energy_j, rows["a"].energy_from) == (50.0, "cpu")  # 5 s of 20 s
    assert rows["b"].energy_j == 0.0
    assert (rows["c"].energy_j, rows["c"].energy_from) == (5.0, "gpu")


def test_a_clock_that_was_set_takes_nothing_back() -> None:
    world = World()
    run = world.begin("a", "GPU-1")
    world.pass_time(-50.0)
    assert world.end(run).device_s == 0.0
