"""How we handle what NVML answers. A stand-in for the library gives the answers: no GPU is tested here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nvml_stub import NvmlStub
from tests.runtime.telemetry.remedies import names_its_remedies

TAKE = """
import dataclasses, json
from prefect_gpu.runtime.telemetry import take_inventory
taken = take_inventory(virtual_devices={virtual}, virtual_device_memory_bytes=1 << 30)
print(json.dumps(dataclasses.asdict(taken)))
"""
DRIVER = "driver|init=0"


def gpu(number: int, **fields: object) -> str:
    known: dict[str, object] = {
        "uuid": f"GPU-{number:04d}",
        "name": "NVIDIA Test 40GB",
        "total": 40_000,
        "reserved": 500,
        "used": 1_000,
        "util": 25,
    }
    return "gpu|" + "|".join(f"{key}={value}" for key, value in (known | fields).items())


def mig(slot: int, **fields: object) -> str:
    known: dict[str, object] = {
        "slot": slot,
        "uuid": f"MIG-{slot:04d}",
        "name": "NVIDIA Test MIG 1g.5gb",
        "total": 5_000,
    }
    return "mig|" + "|".join(f"{key}={value}" for key, value in (known | fields).items())


def take(nvml: NvmlStub, virtual: int = 2, **environ: str) -> Any:
    taken = nvml.run(TAKE.format(virtual=virtual), **environ)
    names_its_remedies(taken["findings"])
    return taken


def ids(inventory: Any) -> list[str]:
    return [device["id"] for device in inventory["devices"]]


def levels(inventory: Any) -> dict[str, str]:
    return {finding["subject"]: finding["level"] for finding in inventory["findings"]}


def text(inventory: Any, subject: str) -> str:
    return " ".join(f"{f['text']} {f['remedy']}" for f in inventory["findings"] if f["subject"] == subject)


def test_gpus_are_named_by_uuid_and_have_what_the_driver_does_not_keep(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, cores="1"), gpu(1)))
    assert ids(taken) == ["GPU-0000", "GPU-0001"]
    assert taken["devices"][0] == {
        "id": "GPU-0000", "kind": "NVIDIA Test 40GB", "memory_bytes": 39_500, "virtual": False,
        "index": 0, "cores": [0], "parent": None, "capability": None, "links": [],
    }  # fmt: skip
    assert text(taken, "devices").startswith("2 × NVIDIA Test 40GB")
    assert levels(taken)["devices"] == "ok"


def test_cores_that_this_process_may_not_use_are_not_called_near(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, cores="ffffffffffffffff")))
    assert taken["devices"][0]["cores"] == list(taken["cpus"])


def test_mig_instances_stand_in_place_of_their_gpu(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, mig=1), mig(0), mig(3), gpu(1, mig=0)))
    assert ids(taken) == ["MIG-0000", "MIG-0003", "GPU-0001"]
    assert [device["parent"] for device in taken["devices"]] == ["GPU-0000", "GPU-0000", None]
    assert taken["devices"][0]["memory_bytes"] == 5_000


def test_mig_without_instances_is_left_out_with_a_remedy(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, mig=1), gpu(1)))
    assert ids(taken) == ["GPU-0001"]
    assert "nvidia-smi mig -i 0" in text(taken, "GPU 0")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", ["GPU-0001"]),
        ("2,0", ["GPU-0002", "GPU-0000"]),
        (" 1 , 1", ["GPU-0001"]),
        ("GPU-0002,0", ["GPU-0002", "GPU-0000"]),
        ("GPU-00022,1", ["GPU-0001"]),
        ("0,-1,2", ["GPU-0000"]),
    ],
)
def test_cuda_visible_devices_is_kept_to(nvml: NvmlStub, visible: str, expected: list[str]) -> None:
    assert ids(take(nvml.says(DRIVER, gpu(0), gpu(1), gpu(2)), CUDA_VISIBLE_DEVICES=visible)) == expected


def test_mig_instances_can_be_made_visible_one_by_one(nvml: NvmlStub) -> None:
    nvml.says(DRIVER, gpu(0, mig=1), mig(0), mig(1), gpu(1))
    assert ids(take(nvml, CUDA_VISIBLE_DEVICES="MIG-0001")) == ["MIG-0001"]
    assert ids(take(nvml, CUDA_VISIBLE_DEVICES="0")) == ["MIG-0000", "MIG-0001"]
    assert ids(take(nvml, CUDA_VISIBLE_DEVICES="GPU-0000")) == ["MIG-0000", "MIG-0001"]


def test_a_visible_device_that_is_not_there_is_a_finding_and_no_virtual_device_steps_in(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0)), CUDA_VISIBLE_DEVICES="7")
    assert ids(taken) == []
    assert "7" in text(taken, "CUDA_VISIBLE_DEVICES")
    assert levels(taken)["devices"] == "error"


def test_empty_cuda_visible_devices_asks_for_the_cpu_even_with_a_broken_driver(nvml: NvmlStub) -> None:
    taken = take(nvml.says("driver|init=18"), CUDA_VISIBLE_DEVICES="")
    assert ids(taken) == ["virtual-0", "virtual-1"]
    assert "CUDA_VISIBLE_DEVICES" in text(taken, "devices")


def test_numbers_are_doubtful_where_gpus_are_unlike(nvml: NvmlStub) -> None:
    nvml.says(DRIVER, gpu(0), gpu(1, name="NVIDIA Other"))
    assert "CUDA_DEVICE_ORDER" in text(take(nvml, CUDA_VISIBLE_DEVICES="1"), "CUDA_VISIBLE_DEVICES")
    sure = take(nvml, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert "CUDA_VISIBLE_DEVICES" not in levels(sure)


@pytest.mark.parametrize("field", ["handle_error", "uuid_error", "memory_error", "name_error"])
def test_a_lost_gpu_is_left_out_and_the_others_stay(nvml: NvmlStub, field: str) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, **{field: 15}), gpu(1)))
    assert ids(taken) == ["GPU-0001"]
    assert "fallen off the bus" in text(taken, "GPU 0")
    assert levels(taken) == {"devices": "ok", "GPU 0": "warning"}


def test_a_lost_gpu_that_was_hidden_is_not_complained_about(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, handle_error=15), gpu(1)), CUDA_VISIBLE_DEVICES="1")
    assert levels(taken) == {"devices": "ok"}


def test_all_gpus_lost_is_an_error_and_no_virtual_device_steps_in(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, handle_error=15)))
    assert ids(taken) == []
    assert levels(taken) == {"devices": "error", "GPU 0": "warning"}


@pytest.mark.parametrize("code", [2, 4, 8, 11, 16, 999])
def test_no_error_code_of_one_gpu_makes_a_traceback(nvml: NvmlStub, code: int) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, handle_error=code), gpu(1)))
    assert ids(taken) == ["GPU-0001"]
    assert text(taken, "GPU 0").startswith("Left out: ")


@pytest.mark.parametrize(
    ("code", "words"),
    [(18, "different versions"), (4, "may not talk"), (13, "too old"), (17, "NVML error 17"), (999, "Unknown Error")],
)
def test_a_driver_that_fails_is_an_error_and_no_virtual_device_steps_in(nvml: NvmlStub, code: int, words: str) -> None:
    taken = take(nvml.says(f"driver|init={code}"))
    assert ids(taken) == []
    assert words in text(taken, "driver")
    assert 'CUDA_VISIBLE_DEVICES=""' in text(taken, "driver")
    assert levels(taken)["driver"] == "error"


def test_a_failing_count_is_an_error(nvml: NvmlStub) -> None:
    taken = take(nvml.says("driver|init=0|count_error=999", gpu(0)), CUDA_VISIBLE_DEVICES="0")
    assert levels(taken) == {"devices": "error", "driver": "error"}


@pytest.mark.parametrize("code", [9, 12])
def test_without_a_loaded_driver_virtual_devices_step_in_and_say_so(nvml: NvmlStub, code: int) -> None:
    taken = take(nvml.says(f"driver|init={code}"))
    assert ids(taken) == ["virtual-0", "virtual-1"]
    assert all(device["virtual"] and device["kind"] == "virtual" for device in taken["devices"])
    assert "not GPUs" in text(taken, "devices")


def test_a_gpu_without_memory_of_its_own_has_the_machines(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, memory_error=3)))
    assert taken["devices"][0]["memory_bytes"] == taken["memory_bytes"]
    assert levels(taken)["GPU 0"] == "warning"


@pytest.mark.parametrize("code", [13, 25])
def test_an_old_driver_tells_memory_the_old_way(nvml: NvmlStub, code: int) -> None:
    assert take(nvml.says(DRIVER, gpu(0, memory2_error=code)))["devices"][0]["memory_bytes"] == 40_000


@pytest.mark.parametrize("code", [3, 999])
def test_what_a_gpu_can_do_without_does_not_cost_it(nvml: NvmlStub, code: int) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, name_error=code, affinity_error=code, mode_error=code, migmode_error=code)))
    assert taken["devices"][0]["kind"] == "NVIDIA GPU"
    assert taken["devices"][0]["cores"] == []


def test_compute_modes(nvml: NvmlStub) -> None:
    taken = take(nvml.says(DRIVER, gpu(0, mode=2), gpu(1, mode=3)))
    assert ids(taken) == ["GPU-0001"]
    assert "Prohibited" in text(taken, "GPU 0")
    assert "cannot share" in text(taken, "GPU 1")


SAMPLE = """
import dataclasses, json
from prefect_gpu.runtime.telemetry import DeviceUnavailable, sample_device
try:
    print(json.dumps(dataclasses.asdict(sample_device({id!r}))))
except DeviceUnavailable as error:
    print(json.dumps(str(error)))
"""


def test_a_sample_has_use_and_memory(nvml: NvmlStub) -> None:
    nvml.says(DRIVER, gpu(0), gpu(1, util=80, used=30_000))
    assert nvml.run(SAMPLE.format(id="GPU-0001")) == {"util": 0.8, "memory_used_bytes": 30_000}


def test_a_mig_instance_tells_memory_only(nvml: NvmlStub) -> None:
    nvml.says(DRIVER, gpu(0, mig=1), mig(2, used=700))
    assert nvml.run(SAMPLE.format(id="MIG-0002")) == {"util": None, "memory_used_bytes": 700}


@pytest.mark.parametrize(
    ("id", "words"), [("GPU-9", "knows no such device"), ("virtual-0", "virtual device"), ("GPU-0000", "fallen off")]
)
def test_a_device_that_cannot_be_sampled_says_why(nvml: NvmlStub, id: str, words: str) -> None:
    nvml.says(DRIVER, gpu(0, handle_error=15))
    assert words in nvml.run(SAMPLE.format(id=id))


def test_sampling_comes_back_after_the_driver_was_loaded_again(nvml: NvmlStub) -> None:
    script = f"""
import json, pathlib
from prefect_gpu.runtime.telemetry import DeviceUnavailable, sample_device
state = pathlib.Path({str(nvml.state)!r})
def util():
    try:
        return sample_device("GPU-0000").util
    except DeviceUnavailable:
        return None
seen = []
for field in ("util=10", "util_error=999", "util=30"):
    state.write_text("driver|init=0\\ngpu|uuid=GPU-0000|" + field + "\\n")
    seen.append(util())
print(json.dumps(seen))
"""
    assert nvml.run(script) == [0.1, None, 0.3]


def test_a_forked_child_opens_its_own_session(nvml: NvmlStub) -> None:
    nvml.says(DRIVER, gpu(0))
    script = """
import json, os
from prefect_gpu.runtime.telemetry import sample_device
sample_device("GPU-0000")
child = os.fork()
if child == 0:
    os._exit(0 if sample_device("GPU-0000").util == 0.25 else 1)
print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""
    assert nvml.run(script) == 0
