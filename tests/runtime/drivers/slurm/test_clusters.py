"""A real cluster, asked by Slurm's commands, by slurmrestd's socket, and by its port with a token: all say the same."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prefect_gpu.blocks.slurm import minutes_of
from prefect_gpu.lab.slurm_nodes import SlurmLab
from prefect_gpu.runtime.drivers.conformance import until
from prefect_gpu.runtime.drivers.slurm.client import SlurmClient
from prefect_gpu.runtime.drivers.slurm.cluster import Cluster, JobEnd, SlurmAway, SlurmError, SlurmJob, hostnames
from prefect_gpu.runtime.drivers.slurm.rest import SlurmRest, Token
from tests.runtime.drivers.slurm.conftest import PART, SHAPE

PREFIX = f"prefect-gpu-contract-{os.getpid()}-"
LIMITED = dataclasses.replace(SHAPE, account="lab", qos="two-gpus", parts=(dataclasses.replace(PART, memory="300M"),))


def by_commands(lab: SlurmLab, folder: Path) -> Cluster:
    return SlurmClient(lab.conf, patience_s=1.0)


def by_socket(lab: SlurmLab, folder: Path) -> Cluster:
    return SlurmRest(lab.rest_socket, patience_s=1.0)


def by_token_in_a_file(lab: SlurmLab, folder: Path) -> Cluster:
    (folder / "token").write_text(lab.command("scontrol", "token", "lifespan=600"))
    return SlurmRest(lab.rest_url, Token(folder / "token"), patience_s=1.0)


def by_token_of_its_own(lab: SlurmLab, folder: Path) -> Cluster:
    return SlurmRest(lab.rest_url, Token(conf=lab.conf), patience_s=1.0)


WAYS = (by_commands, by_socket, by_token_in_a_file, by_token_of_its_own)


@pytest.fixture(params=WAYS)
async def cluster(served_slurm: SlurmLab, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    yield request.param(served_slurm, tmp_path)
    await until(lambda: not served_slurm.queue())


class Jobs:
    """Submits jobs that sleep, and sees what becomes of them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self.script = folder / "script.sh"
        self.script.write_text("#!/bin/bash\nsleep 600\n")

    async def submit(self, name: str, shape: object = LIMITED) -> str:
        options = shape.options(PREFIX + name, self._folder / "log")  # type: ignore[attr-defined]
        return await self._cluster.submit(self.script, options)

    async def until(self, number: str, state: str, reason: str = "") -> SlurmJob:
        while True:
            found = {job.id: job for job in await self._cluster.jobs(PREFIX)}
            job = found.get(number)
            if job is not None and job.state == state and reason in job.reason:
                return job
            await asyncio.sleep(0.1)

    async def end_of(self, number: str) -> JobEnd:
        while True:
            if (end := (await self._cluster.ends([number, "4000000"])).get(number)) is not None:
                return end
            await asyncio.sleep(0.1)


@pytest.fixture
def jobs(cluster: Cluster, tmp_path: Path) -> Jobs:
    return Jobs(cluster, tmp_path)


async def test_a_job_begins_waits_for_a_limit_and_is_cancelled(cluster: Cluster, jobs: Jobs) -> None:
    first = await jobs.submit("first")
    began = await jobs.until(first, "RUNNING")
    assert began.name == f"{PREFIX}first" and began.runs and not began.waits
    assert began.starts_at is not None and began.ends_at == began.starts_at + LIMITED.minutes * 60
    second = await jobs.submit("second")
    waits = await jobs.until(second, "PENDING", "QOSMaxGRESPerUser")
    assert waits.waits and waits.ends_at is None
    assert not [job for job in await cluster.jobs("other-pool-") if job.id in (first, second)]
    await cluster.cancel([first, second])
    for number in (first, second):
        assert (await jobs.until(number, "CANCELLED")).ends_at is not None
    await cluster.cancel([first])  # it is over
    assert await jobs.end_of(first) == JobEnd("CANCELLED by root")


async def test_a_heterogeneous_job_is_one_that_begins_and_ends_as_a_whole(
    cluster: Cluster, jobs: Jobs, served_slurm: SlurmLab
) -> None:
    without_gpus = dataclasses.replace(PART, gres="", memory="300M")
    number = await jobs.submit("mixed", dataclasses.replace(LIMITED, parts=(*LIMITED.parts, without_gpus)))
    began = await jobs.until(number, "RUNNING")
    assert began.name == f"{PREFIX}mixed" and sorted(hostnames(began.nodes)) == sorted(served_slurm.nodes)
    assert [job.id for job in await cluster.jobs(PREFIX) if job.runs] == [number]
    await cluster.cancel([number])
    await jobs.until(number, "CANCELLED")
    assert await jobs.end_of(number) == JobEnd("CANCELLED by root")


async def test_what_slurm_refuses_is_said_in_its_words(cluster: Cluster, jobs: Jobs) -> None:
    with pytest.raises(SlurmError, match="partition") as refused:
        await jobs.submit(
            "refused", dataclasses.replace(LIMITED, parts=(dataclasses.replace(PART, partition="nowhere"),))
        )
    assert not refused.value.away
    with pytest.raises(SlurmError, match=r"qos|QOS"):
        await jobs.submit("refused", dataclasses.replace(LIMITED, qos="unheard-of"))


async def test_what_would_be_refused_is_known_without_submitting_it(served_slurm: SlurmLab, tmp_path: Path) -> None:
    slurm, few = by_commands(served_slurm, tmp_path), ["--job-name=asked", "--cpus-per-task=1"]
    assert not await slurm.refusal(few) and not await slurm.refusal([*few, ":", *few])
    assert "not available" in await slurm.refusal(["--job-name=asked", "--cpus-per-task=4096"])
    assert not await slurm.jobs("asked")


async def test_a_controller_that_is_away_is_no_refusal(served_slurm: SlurmLab, tmp_path: Path) -> None:
    clusters = [ask(served_slurm, tmp_path) for ask in WAYS]
    names = [await cluster.cluster_name() for cluster in clusters]
    await asyncio.gather(*(cluster.jobs(PREFIX) for cluster in clusters))  # who needs a token has one
    served_slurm.script("controller-stop")
    try:
        asked = [cluster.jobs(PREFIX) for cluster in clusters]
        submitted = [Jobs(cluster, tmp_path).submit("unheard") for cluster in clusters]
        answers = await asyncio.gather(*asked, *submitted, return_exceptions=True)
        assert [type(answer) for answer in answers] == [SlurmAway] * (2 * len(WAYS)), answers
    finally:
        served_slurm.script("controller-start")
        served_slurm.script("start")  # it waits for the nodes
    assert [await cluster.cluster_name() for cluster in clusters] == names
    for cluster in clusters:
        there = await cluster.partitions()
        assert there.keys() == {"train", "urgent"}
        assert {(one.state, minutes_of(one.time)) for one in there.values()} == {("up", 60)}


async def test_drained_nodes_are_told_with_the_reason_and_a_job_waits_for_them(
    cluster: Cluster, jobs: Jobs, served_slurm: SlurmLab
) -> None:
    nodes = ",".join(served_slurm.nodes)
    served_slurm.command("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=a new fan")
    try:
        drained = await cluster.drained()
        assert sorted(drained) == sorted(served_slurm.nodes)
        assert all(reason.startswith("a new fan") for reason in drained.values())
        number = await jobs.submit("waits")
        await jobs.until(number, "PENDING", "DRAINED")
        await cluster.cancel([number])
    finally:
        served_slurm.command("scontrol", "update", f"NodeName={nodes}", "State=UNDRAIN")
    assert not await cluster.drained()


async def test_a_server_that_is_not_there_is_away_and_a_wrong_token_is_refused(
    served_slurm: SlurmLab, tmp_path: Path
) -> None:
    with pytest.raises(SlurmAway, match="slurmrestd does not answer"):
        await SlurmRest(f"unix://{tmp_path / 'nobody'}", patience_s=0.0).jobs(PREFIX)
    (tmp_path / "token").write_text("SLURM_JWT=of another cluster")
    with pytest.raises(SlurmError, match="is the token still good"):
        await SlurmRest(served_slurm.rest_url, Token(tmp_path / "token"), patience_s=0.0).jobs(PREFIX)
    with pytest.raises(SlurmError, match="token for slurmrestd cannot be read"):
        await SlurmRest(served_slurm.rest_url, Token(tmp_path / "none")).jobs(PREFIX)
