"""Who is to blame for an allocation that ran out of main memory, and how often runs are given another chance."""

from __future__ import annotations

import pytest

from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.accounting import Accounting, ends_of
from prefect_gpu.runtime.drivers.slurm.cluster import JobEnd, SlurmError, SlurmJob
from prefect_gpu.runtime.drivers.slurm.memory import MOST, Suspects
from prefect_gpu.runtime.drivers.slurm.pilots import how_it_ended

RECORD = words.Record("token", "small", job="7")


def test_who_was_alone_is_to_blame_at_once() -> None:
    assert Suspects().guilty(frozenset({"a"}), alone=True) == {"a"}


def test_who_was_there_again_and_again_is_to_blame_and_its_neighbours_are_not() -> None:
    suspects = Suspects()
    for number in range(MOST):
        assert not suspects.guilty(frozenset({"a", f"neighbour-{number}"}), alone=True)
    assert suspects.guilty(frozenset({"a", "another"}), alone=True) == {"a"}


def test_of_whom_nobody_knows_whether_it_was_alone_is_given_another_chance() -> None:
    suspects = Suspects()
    for _ in range(MOST):
        assert not suspects.guilty(frozenset({"a"}), alone=False)
    assert suspects.guilty(frozenset({"a"}), alone=False) == {"a"}


@pytest.mark.parametrize(
    ("job", "end"),
    [
        (SlurmJob("7", "n", "OUT_OF_MEMORY"), None),
        (SlurmJob("7", "n", "FAILED"), JobEnd("FAILED", out_of_memory=True)),  # a step of it
        (None, JobEnd("OUT_OF_MEMORY", out_of_memory=True)),
    ],
)
def test_memory_that_ran_out_is_told_with_what_to_do(job: SlurmJob | None, end: JobEnd | None) -> None:
    over = how_it_ended(RECORD, job, end)
    assert over.out_of_memory
    assert "job 7 of the shape 'small', ran out of main memory (OUT_OF_MEMORY)" in over.why and "`memory`" in over.why


def test_where_slurm_only_says_that_the_job_has_failed_its_output_tells_why() -> None:
    failed = SlurmJob("7", "n", "FAILED")
    said = "slurmstepd-n1: error: StepId=7.0 exceeded memory limit (1082317824 > 209715200), being killed"
    assert how_it_ended(RECORD, failed, None, ["training", said]).out_of_memory
    assert not how_it_ended(RECORD, failed, None, ["training"]).out_of_memory
    cancelled = SlurmJob("7", "n", "CANCELLED")  # a run of it was ended by the kernel, long before
    assert not how_it_ended(RECORD, cancelled, None, [said]).out_of_memory


def test_what_the_accounting_knows_goes_before_what_the_queue_shows() -> None:
    shown = SlurmJob("7", "n", "CANCELLED")
    assert "has ended: CANCELLED by ada." in how_it_ended(RECORD, shown, JobEnd("CANCELLED by ada")).why
    assert "has ended: CANCELLED." in how_it_ended(RECORD, shown, None).why
    assert "not in Slurm's queue any more" in how_it_ended(RECORD, None, None).why


def test_a_job_that_is_requeued_or_runs_has_no_end() -> None:
    assert ends_of("7|RUNNING\n7.0|RUNNING\n8|PENDING\n9|REQUEUED\n10|COMPLETED\n10.batch|COMPLETED\n") == {
        "10": JobEnd("COMPLETED")
    }
    assert ends_of("") == {}


async def test_a_cluster_that_keeps_no_accounts_is_not_asked_again() -> None:
    asked = []

    async def ask(numbers: list[str]) -> dict[str, JobEnd]:
        asked.append(numbers)
        raise SlurmError("Slurm accounting storage is disabled")

    accounting = Accounting(ask)
    assert await accounting.ends([]) == {} and not asked
    assert await accounting.ends(["7"]) == {} == await accounting.ends(["8"])
    assert asked == [["7"]]
