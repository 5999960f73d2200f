"""The block that says what Slurm is asked for."""

from __future__ import annotations

import pytest

from prefect_gpu.blocks import GpuSlurm, SlurmShape

ONE = {"name": "one", "time": "60", "gres": "gpu:1"}


def test_a_site_that_wants_one_job_for_each_run_keeps_no_allocations() -> None:
    assert GpuSlurm(shapes=[SlurmShape(**ONE)], mode="one-job-per-run").plan("python3").one_run
    assert not GpuSlurm(shapes=[SlurmShape(**ONE, minimum=1)]).plan("python3").one_run
    with pytest.raises(ValueError, match="minimum of shape one keeps allocations without a run"):
        GpuSlurm(shapes=[SlurmShape(**ONE, minimum=1)], mode="one-job-per-run")
    with pytest.raises(ValueError, match="'allocations' or 'one-job-per-run'"):
        GpuSlurm(shapes=[SlurmShape(**ONE)], mode="pilots")


def test_a_heterogeneous_job_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="heterogeneous job, and there are none: name a shape for each kind"):
        SlurmShape(**ONE, flags=["--reservation=ours", ":", "--gres=gpu:4"])
