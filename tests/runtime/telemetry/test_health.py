"""What is noticed of a GPU's health. A stand-in for NVIDIA's library gives the answers: no GPU is tested here."""

from __future__ import annotations

import pytest

from prefect_gpu.runtime.telemetry.faults import OF_APPLICATIONS, OF_DEVICES, of_xid
from tests.nvml_stub import NvmlStub
from tests.runtime.telemetry.test_nvml import DRIVER, gpu, mig, take

WATCH = """
import dataclasses, json, os, pathlib
from prefect_gpu.runtime.telemetry import health
health.LOOK_EVERY_S = 0.0
watch, state = health.DeviceWatch({devices!r}), pathlib.Path(os.environ["NVML_STUB_STATE"])
found = [[dataclasses.asdict(one) for one in watch.wait(0.05)]]
for text in {later!r}:
    state.write_text(text)
    found.append([dataclasses.asdict(one) for one in watch.wait(0.05)])
watch.close()
print(json.dumps(found))
"""


def watched(
    nvml: NvmlStub, devices: list[str], first: list[str], *later: list[str]
) -> list[list[tuple[str, str, bool]]]:
    """What is told of devices while the driver answers the one thing after the other."""
    nvml.says(*first)
    texts = ["".join(f"{line}\n" for line in lines) for lines in later]
    looks = nvml.run(WATCH.format(devices=devices, later=texts))
    return [[(one["device"], one["code"], one["serious"]) for one in look] for look in looks]


def test_capability_and_nvlink_are_found(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, cc="8.0", links="1"), gpu(1, cc="8.0", links="0"), gpu(2, cc="7.5")))
    found = [(one["capability"], one["links"]) for one in taken["devices"]]
    assert found == [([8, 0], ["GPU-0001"]), ([8, 0], ["GPU-0000"]), ([7, 5], [])]
    taken = take(nvml.says(DRIVER, *(gpu(at, links="s,s") for at in range(3))))
    assert taken["devices"][1]["links"] == ["GPU-0000", "GPU-0002"], "all that have links to switches reach each other"


def test_xids_of_the_gpu_count_and_those_of_programs_do_not(nvml: NvmlStub) -> None:
    events = ["event|gpu=1|xid=31", "event|gpu=1|xid=79", "event|gpu=0|xid=13", "event|gpu=0|xid=63"]
    told = watched(nvml, ["GPU-0000", "GPU-0001"], [DRIVER, gpu(0), gpu(1), *events])
    assert told == [[("GPU-0001", "xid-79", True), ("GPU-0000", "xid-63", False)]]
    assert not OF_APPLICATIONS.keys() & OF_DEVICES.keys()
    assert of_xid("GPU-0000", 31) is None and of_xid("GPU-0000", 99_999) is None


def test_what_befalls_a_gpu_befalls_its_instances(nvml: NvmlStub) -> None:
    told = watched(nvml, ["MIG-0000"], [DRIVER, gpu(0, mig=1), mig(0), "event|gpu=0"])
    assert told == [[("MIG-0000", "ecc", True)]]


def test_errors_from_before_are_no_news_and_flags_are_told_once(nvml: NvmlStub) -> None:
    told = watched(
        nvml,
        ["GPU-0000"],
        [DRIVER, gpu(0, ecc=3)],
        [DRIVER, gpu(0, ecc=3, pending=1)],
        [DRIVER, gpu(0, ecc=3, pending=1)],
        [DRIVER, gpu(0, ecc=5, failure=1)],
    )
    assert told == [
        [],
        [("GPU-0000", "rows-pending", False)],
        [],
        [("GPU-0000", "ecc", True), ("GPU-0000", "rows", True)],
    ]


def test_heat_is_told_when_it_lasts_and_again_when_it_comes_back(nvml: NvmlStub) -> None:
    hot, cool = [DRIVER, gpu(0, throttle=40)], [DRIVER, gpu(0, throttle=4)]  # 4: a power cap is no trouble
    told = watched(nvml, ["GPU-0000"], cool, hot, hot, hot, hot, cool, hot, hot, hot)
    assert [len(look) for look in told] == [0, 0, 0, 1, 0, 0, 0, 0, 1]
    assert told[3] == [("GPU-0000", "thermal", False)]


@pytest.mark.parametrize("code", [15, 6])
def test_a_gpu_that_fell_off_the_bus_is_noticed_without_an_event(nvml: NvmlStub, code: int) -> None:
    told = watched(
        nvml, ["GPU-0000", "GPU-0001"], [DRIVER, gpu(0), gpu(1)], [DRIVER, gpu(0), gpu(1, handle_error=code)]
    )
    assert told == [[], [("GPU-0001", "gone", True)]]


def test_a_gpu_that_is_lost_takes_along_no_news_of_others(nvml: NvmlStub) -> None:
    """The driver does not even tell any more which one it is that an event is of."""
    lost = gpu(1, uuid_error=15, handle_error=15)
    events = ["event|gpu=0|xid=48", "event|gpu=1|xid=79"]
    told = watched(nvml, ["GPU-0000", "GPU-0001"], [DRIVER, gpu(0), lost, *events])
    assert told == [[("GPU-0000", "xid-48", True), ("GPU-0001", "gone", True)]]


BESIDE = """
import asyncio, json, logging, os, pathlib
from prefect_gpu.runtime.devices import health_watch
from prefect_gpu.runtime.devices.cordons import Cordons
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.scheduling.model.cluster import Device, Node
health_watch._AGAIN_S = 0.01
state = pathlib.Path(os.environ["NVML_STUB_STATE"])
fleet, cordons = Fleet(), Cordons(state.parent / "cordons")
(state.parent / "cordons").mkdir()

async def main():
    watch = health_watch.HealthWatch(cordons, fleet, logging.getLogger("watch"))
    watching = asyncio.ensure_future(watch.run_beside())
    await asyncio.sleep(0.05)  # no node is known yet
    devices = [Device(name, "H100", 80) for name in ("GPU-0000", "GPU-0001")]
    fleet.change([Node("here", tuple(devices), (0,)), Node("other", (Device("GPU-9999", "H100", 80),), (0,))])
    while not cordons.read() and not watching.done():
        await asyncio.sleep(0.02)
    print(json.dumps([{name: one.reason for name, one in cordons.read().items()}, watching.done()]))

asyncio.run(main())
"""


def test_where_runs_are_in_containers_the_gpus_of_this_machine_are_watched_and_no_others(nvml: NvmlStub) -> None:
    cordoned, over = nvml.says(DRIVER, gpu(0), gpu(1), "event|gpu=1|xid=79").run(BESIDE)
    assert cordoned == {"GPU-0001": "it has fallen off the bus (Xid 79)"}, "GPU-9999 is elsewhere, and not gone"
    assert not over


def test_where_runs_are_in_containers_and_this_machine_has_no_gpu_nothing_is_watched(nvml: NvmlStub) -> None:
    assert nvml.says("driver|init=9").run(BESIDE) == [{}, True]
