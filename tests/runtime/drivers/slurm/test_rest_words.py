"""What slurmrestd is told, and how what it says is read. Later versions than the one at hand are as documented."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers.slurm.cluster import JobEnd, Partition, SlurmError, SlurmJob
from prefect_gpu.runtime.drivers.slurm.parts import Part
from prefect_gpu.runtime.drivers.slurm.rest_words import (
    KNOWN,
    TESTED,
    end_of,
    environment_of,
    flags_of,
    job_of,
    partition_of,
    properties_of,
)
from prefect_gpu.runtime.drivers.slurm.shapes import Shape

LATER = TESTED + 2
ALL = Shape(
    *("all", 90, (Part(2, "gpu:a100:4", 8, "64G", "gpu", "nvlink"),), "lab", "urgent", "matlab:1"),
    flags=("--exclusive", "--reservation=ours", "--nice=10", "--comment=mine", "--wckey=k"),
)


def test_all_that_a_shape_can_say_is_known() -> None:
    options = ALL.options("name", Path("/log"))
    assert {option.removeprefix("--").partition("=")[0] for option in options} <= KNOWN
    told = properties_of(options, TESTED)
    assert (told["nodes"], told["gres"], told["memory_per_node"], told["time_limit"]) == (
        [2, 2],
        "gpu:a100:4",
        65536,
        90,
    )
    assert (told["exclusive"], told["requeue"], told["tasks_per_node"], told["cpus_per_task"]) == ("true", False, 1, 8)
    later = properties_of(options, LATER)
    assert (later["nodes"], later["tres_per_node"]) == ("2", "gres/gpu:a100:4")
    assert isinstance(environment_of(TESTED), dict) and isinstance(environment_of(LATER), list)


@pytest.mark.parametrize(
    ("option", "said"),
    [("--begin=tomorrow", "cannot be asked of slurmrestd"), ("--mem=lots", "is no amount of memory")],
)
def test_what_cannot_be_said_is_refused(option: str, said: str) -> None:
    with pytest.raises(SlurmError, match=said):
        properties_of([option], TESTED)


def test_memory_is_said_in_megabytes() -> None:
    asked = {"500": 500, "64G": 65536, "1T": 1 << 20, "512K": 1, "300MB": 300}
    for said, megabytes in asked.items():
        options = dataclasses.replace(ALL, parts=(Part(memory=said),), flags=()).options("name", Path("/log"))
        assert properties_of(options, TESTED)["memory_per_node"] == megabytes


def test_a_job_is_read_of_this_version_and_of_a_later_one() -> None:
    now = {"job_id": 7, "name": "n", "job_state": "RUNNING", "state_reason": "None", "start_time": 5, "end_time": 9}
    time = {"set": True, "infinite": False, "number": 5}
    later = {"job_id": 7, "name": "n", "job_state": ["RUNNING"], "state_reason": "None", "start_time": time}
    assert job_of(now) == SlurmJob("7", "n", "RUNNING", "None", 9.0, 5.0)
    assert job_of(later | {"end_time": {"set": False}}) == SlurmJob("7", "n", "RUNNING", "None", None, 5.0)
    ending = later | {"job_state": ["CANCELLED", "COMPLETING"], "end_time": {"set": True, "infinite": True}}
    assert job_of(ending).state == "COMPLETING"


def test_nodes_and_partitions_are_read_of_this_version_and_of_a_later_one() -> None:
    assert "DRAIN" in flags_of({"state": "idle", "state_flags": ["DRAIN"]})
    assert "DRAIN" in flags_of({"state": ["IDLE", "DRAIN"]})
    assert not flags_of({"state": "mixed", "state_flags": []})
    now, later = {"state": "UP", "max_time_limit": 60}, {"partition": {"state": ["UP"]}}
    assert partition_of(now) == Partition("up", "60")
    assert partition_of(later | {"maximums": {"time": {"set": True, "infinite": False, "number": 60}}}) == partition_of(
        now
    )
    for unlimited in ({"time": {"set": False, "infinite": True, "number": 0}}, {}):
        assert partition_of(later | {"maximums": unlimited}) == Partition("up", "infinite")


def test_an_end_is_read_with_who_has_cancelled_and_with_what_a_step_says() -> None:
    cancelled = {"state": {"current": ["CANCELLED"]}, "kill_request_user": "ada", "steps": []}
    assert end_of(cancelled) == JobEnd("CANCELLED by ada")
    failed = {"state": {"current": "FAILED"}, "steps": [{"state": "COMPLETED"}, {"state": ["OUT_OF_MEMORY"]}]}
    assert end_of(failed) == JobEnd("FAILED", out_of_memory=True)
    assert end_of({"state": {"current": "RUNNING"}}) is None
