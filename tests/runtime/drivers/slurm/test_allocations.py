"""Allocations of a real Slurm: they come as they are needed, are found again, and are given back, whatever happens."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from prefect_gpu.lab.sandbox import free_port
from prefect_gpu.lab.slurm_nodes import SlurmLab
from prefect_gpu.runtime.drivers.base import Demand, LaunchError, Wanted
from prefect_gpu.runtime.drivers.conformance import MakeSpec, alive, until
from prefect_gpu.runtime.drivers.slurm.client import SlurmClient
from prefect_gpu.runtime.drivers.slurm.cluster import SlurmAway
from prefect_gpu.runtime.drivers.slurm.parts import Part
from prefect_gpu.runtime.drivers.slurm.pilots import Pilots
from prefect_gpu.runtime.drivers.slurm.words import Tunnel
from prefect_gpu.runtime.drivers.warm import PATIENCE_S
from prefect_gpu.scheduling.model.jobs import Request
from tests.runtime.drivers.slurm.conftest import (
    LOGGER,
    ONE,
    PART,
    SHAPE,
    WAITS,
    Forgetful,
    Watched,
    cancel,
    empty,
    make,
    preempt,
    process_of,
    running,
    set_down,
    watched,
)


async def test_a_node_comes_when_somebody_waits_and_goes_when_nobody_needs_it(slurm: SlurmLab, folder: Path) -> None:
    async with watched(make(slurm, folder, idle_s=1.0)) as pool:
        assert not slurm.queue()
        pool.demand = ONE
        await pool.until(lambda: pool.nodes)
        [node] = pool.nodes
        host, _, job = node.id.partition(".")
        assert host in slurm.nodes and [job] == slurm.queue()
        assert [device.id for device in node.devices] == [f"{node.id}/virtual-0", f"{node.id}/virtual-1"]
        assert node.ends_at is not None and job in node.ends_why
        assert (node.rack, node.domain) == ("rack1" if host == slurm.nodes[0] else "rack2", "top")
        pool.demand = Demand()
        await pool.until(lambda: not pool.nodes)
        await empty(slurm)
        await until(lambda: [path.name for path in folder.glob("*.json")] == ["agents.json"])


async def test_an_allocation_of_two_kinds_of_nodes_comes_and_goes_as_one(
    slurm: SlurmLab, folder: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heterogeneous job."""
    shape = dataclasses.replace(SHAPE, parts=(PART, Part(nodes=2)))
    driver = make(slurm, folder, [shape])
    look = driver._look

    async def slowly() -> None:  # as where Slurm is busy
        await look()
        await asyncio.sleep(0.2)

    monkeypatch.setattr(driver, "_look", slowly)
    async with watched(driver) as pool:
        wanted = Wanted(Request(gpus=1, servers=2))
        pool.demand = Demand(waiting=(wanted,))
        await pool.until(lambda: len(pool.nodes) == 3 or pool.driver.coming(wanted) is None)
        assert len(pool.nodes) == 3, "until the last of its nodes is there, a run is not refused for want of nodes"
        assert sorted(len(node.devices) for node in pool.nodes) == [0, 0, 2]
        assert len({node.id for node in pool.nodes}) == 3
        assert len({node.id.rpartition(".")[2] for node in pool.nodes}) == 1
        pool.demand = Demand(busy=frozenset(node.id for node in pool.nodes))
        waits = [dataclasses.replace(make_spec(WAITS), node=node.id) for node in pool.nodes]
        handles = [await pool.driver.launch(spec) for spec in waits]
        for spec in waits:
            await until((spec.cwd / "ready").exists)
        slurm.command("scancel", pool.nodes[0].id.rpartition(".")[2])
        for handle in handles:
            report = await handle.wait()
            assert report.carries_on or report.returncode == -signal.SIGTERM
        pool.demand = Demand()
        await pool.until(lambda: not pool.nodes)
        await empty(slurm)


async def test_the_first_run_of_a_node_waits_for_its_warm_interpreter(
    slurm: SlurmLab, folder: Path, make_spec: MakeSpec, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    until_told = "while not here.with_name('go').exists(): time.sleep(0.02)"
    (library / "slow.py").write_text(f"import pathlib, time\nhere = pathlib.Path(__file__)\n{until_told}")
    environ = {**os.environ, "PYTHONPATH": str(library)}
    driver = make(slurm, folder, idle_s=1.0, warm=True, preload=("slow",), environ=environ)
    async with watched(driver) as pool:
        pool.demand = ONE
        await pool.until(lambda: pool.nodes)
        spec = dataclasses.replace(make_spec("print('ran')", PYTHONPATH=str(library)), node=pool.nodes[0].id)
        launching = asyncio.create_task(pool.driver.launch(spec))
        await asyncio.sleep(PATIENCE_S + 1.0)  # a worker's own runs would have begun from cold by now
        (library / "go").touch()
        handle = await launching
        assert handle.warm and (await handle.wait()).tail == ("ran",)
        pool.demand = Demand()
        await empty(slurm)


def requeue(slurm: SlurmLab, job: str, host: str) -> None:
    """It would come back under the same number, with an agent that knows of no run."""
    slurm.command("scontrol", "update", f"JobId={job}", "Requeue=1")
    slurm.command("scontrol", "requeue", job)


@pytest.mark.parametrize(
    ("end", "said"),
    [(cancel, "CANCELLED"), (set_down, "NODE_FAIL"), (preempt, "PREEMPTED"), (requeue, "requeued")],
)
async def test_an_allocation_that_slurm_ends_takes_its_run_along_and_says_so(
    slurm: SlurmLab, folder: Path, make_spec: MakeSpec, end: Callable[[SlurmLab, str, str], None], said: str
) -> None:
    async with watched(make(slurm, folder)) as pool:
        handle = await running(pool, make_spec(WAITS))
        [job] = slurm.queue()
        end(slurm, job, pool.nodes[0].id.partition(".")[0])
        report = await handle.wait()
        assert report.carries_on or report.returncode == -signal.SIGTERM
        assert report.returncode is not None or said in report.cause
        await until(lambda: not alive(process_of(handle)))
        await pool.until(lambda: not pool.nodes)
        pool.demand = ONE
        await pool.until(lambda: pool.nodes)
        assert job not in slurm.queue()
        slurm.command("scancel", *slurm.queue())


def agent_in(folder: Path) -> psutil.Process:
    """The one process that serves an allocation of this folder, beside the one that guards it."""
    ours = [one for one in psutil.process_iter(["cmdline"]) if str(folder) in (one.info["cmdline"] or ())]
    [agent] = [one for one in ours if "srun" not in one.name() and one.parent() in ours]
    return agent


async def test_an_agent_that_is_killed_leaves_no_run_behind(slurm: SlurmLab, folder: Path, make_spec: MakeSpec) -> None:
    async with watched(make(slurm, folder)) as pool:
        handle = await running(pool, make_spec(WAITS))
        agent_in(folder).kill()
        report = await handle.wait()
        assert (report.returncode, report.lost, report.carries_on) == (None, True, True)
        assert not alive(process_of(handle))


@pytest.mark.parametrize("gone", [True, False])
async def test_a_run_that_ended_unseen_with_its_allocation_carries_on_and_one_that_ended_before_does_not(
    slurm: SlurmLab, folder: Path, make_spec: MakeSpec, gone: bool
) -> None:
    spec = make_spec(WAITS)
    async with watched(make(slurm, folder)) as pool:
        handle = await running(pool, spec)
    agent = agent_in(folder)
    agent.suspend()  # what it would note, it does not
    os.kill(process_of(handle), signal.SIGKILL)
    await until((spec.run_dir / "exit.json").exists)
    if gone:
        agent.kill()
        await empty(slurm)
    else:
        agent.resume()
    async with watched(make(slurm, folder, client=Forgetful(slurm.conf, patience_s=2.0))) as pool:
        found = await pool.driver.adopt(spec.run_id, spec.run_dir)
        assert found is not None
        report = await found.wait()
    assert (report.lost, report.carries_on) == (gone, gone)
    assert report.returncode == (None if gone else -signal.SIGKILL)
    if not gone:
        slurm.command("scancel", *slurm.queue())


async def test_runs_go_on_while_the_controller_is_away(slurm: SlurmLab, folder: Path, make_spec: MakeSpec) -> None:
    async with watched(make(slurm, folder, idle_s=1.0)) as pool:
        first = await running(pool, make_spec(WAITS))
        slurm.script("controller-stop")
        spec = dataclasses.replace(make_spec("print('ran')"), node=pool.nodes[0].id)
        assert (await (await pool.driver.launch(spec)).wait()).tail == ("ran",)
        assert len(pool.nodes) == 1
        slurm.script("controller-start")
        await first.stop(0)
        pool.demand = Demand()
        await empty(slurm)


async def test_a_job_whose_number_was_never_learned_is_found_by_its_name(slurm: SlurmLab, folder: Path) -> None:
    """The worker dies, or the answer is lost, between sbatch and the record."""

    class Deaf(SlurmClient):
        async def submit(self, *arguments: object, **more: object) -> str:
            await super().submit(*arguments, **more)  # type: ignore[arg-type]
            raise SlurmAway("the answer was lost")

    driver = make(slurm, folder)
    prefix = f"prefect-gpu-test-{folder.name}-"
    async with watched(driver):
        pass  # what agents are told is written down
    lost = Pilots(Deaf(slurm.conf), folder, prefix, LOGGER)
    pilot = await lost.submit(SHAPE)
    assert pilot is not None and pilot.record.job == ""
    [job] = slurm.queue()
    async with watched(make(slurm, folder, idle_s=0.5)) as pool:
        pool.demand = ONE
        await pool.until(lambda: pool.nodes)
        assert pool.nodes[0].id.partition(".")[2] == job
        pool.demand = Demand()
        await empty(slurm)


async def test_a_job_of_the_pool_that_nobody_has_written_down_is_cancelled(slurm: SlurmLab, folder: Path) -> None:
    prefix = f"prefect-gpu-test-{folder.name}-"
    slurm.command("sbatch", f"--job-name={prefix}00000000", "--output=/dev/null", "--wrap=sleep 600")
    other = slurm.command("sbatch", "--parsable", "--job-name=theirs", "--output=/dev/null", "--wrap=sleep 600").strip()
    async with watched(make(slurm, folder)):
        await until(lambda: slurm.queue() == [other])
    slurm.command("scancel", other)
    await empty(slurm)


async def test_a_job_for_one_run_takes_no_other_and_ends_with_it(
    slurm: SlurmLab, folder: Path, make_spec: MakeSpec
) -> None:
    """Also with a worker that comes later."""
    shapes = [dataclasses.replace(SHAPE, maximum=2)]
    async with watched(make(slurm, folder, shapes, one_run=True)) as pool:
        handle = await running(pool, make_spec(WAITS))
        [job] = slurm.queue()
        node = next(iter(pool.demand.busy))
        await pool.until(lambda: not pool.nodes)
        with pytest.raises(LaunchError, match="takes no work") as refused:
            await pool.driver.launch(dataclasses.replace(make_spec("print('ran')"), node=node))
        assert refused.value.away
    async with watched(make(slurm, folder, shapes, one_run=True)) as pool:
        pool.demand = Demand(waiting=ONE.waiting, busy=frozenset({node}))
        await pool.until(lambda: pool.nodes)
        assert job in slurm.queue() and len(slurm.queue()) == 2
        pool.demand = Demand(busy=frozenset({pool.nodes[0].id}))
        slurm.command("scancel", *(one for one in slurm.queue() if one != job))
        os.kill(process_of(handle), signal.SIGKILL)
        await empty(slurm)


async def test_an_agent_that_nobody_needs_gives_its_node_back_without_a_worker(slurm: SlurmLab, folder: Path) -> None:
    async with watched(make(slurm, folder, alone_s=1.0)) as pool:
        pool.demand = ONE
        await pool.until(lambda: pool.nodes)
    await empty(slurm)


async def test_what_slurm_refuses_is_said_to_whoever_waits(slurm: SlurmLab, folder: Path) -> None:
    shape = dataclasses.replace(SHAPE, parts=(dataclasses.replace(PART, partition="nowhere"),))
    async with watched(make(slurm, folder, [shape])) as pool:
        pool.demand = ONE
        await pool.until(lambda: "Invalid partition" in words(pool, gpus=1))
        assert "no shape of the block gpu-slurm holds that (small: 2 devices" in words(pool, gpus=3)
        assert not pool.driver.coming(Wanted(Request(gpus=3))).possible  # type: ignore[union-attr]
        assert "end after 30 minutes: make it preemptible" in words(pool, gpus=1, needs_s=1e5)


@pytest.mark.parametrize("shared", [True, False])
async def test_an_agent_that_cannot_start_is_said_to_whoever_waits_and_not_tried_at_once(
    slurm: SlurmLab, folder: Path, shared: bool
) -> None:
    shape = dataclasses.replace(SHAPE, python="/nowhere/python", name="broken")
    async with watched(make(slurm, folder, [shape], shared=shared)) as pool:
        pool.demand = ONE
        await pool.until(lambda: "has ended before its agent has connected (FAILED" in words(pool, gpus=1))
        assert "/nowhere/python" in words(pool, gpus=1)
        assert not slurm.queue()


async def test_nodes_without_a_gpu_that_can_be_used_go_back_and_whoever_waits_is_told(
    slurm: SlurmLab, folder: Path
) -> None:
    """As where a driver is broken. Runs were refused, or waited for a node that was there."""
    shape = dataclasses.replace(SHAPE, parts=(dataclasses.replace(PART, virtual_devices=0),), maximum=1)
    async with watched(make(slurm, folder, [shape])) as pool:
        pool.demand = ONE
        await pool.until(lambda: "has no GPU that can be used" in words(pool, gpus=1))
        await pool.until(lambda: not slurm.queue())
        assert "Slurm is asked for another one later" in words(pool, gpus=1) and not pool.nodes


@pytest.mark.needs("openssh")
@pytest.mark.parametrize("opened_by", ["node", "worker"])
async def test_a_tunnel_that_does_not_open_is_said_in_sshs_words_to_whoever_waits(
    slurm: SlurmLab, folder: Path, opened_by: str
) -> None:
    options = ("-p", str(free_port()), "-o", "HostName=127.0.0.1")
    tunnel = Tunnel(via="login1" if opened_by == "node" else "", opened_by=opened_by, options=options)
    async with watched(make(slurm, folder, alone_s=3.0, tunnel=tunnel)) as pool:
        pool.demand = ONE
        await pool.until(lambda: "Connection refused" in words(pool, gpus=1))
        assert "he tunnel by ssh to " in words(pool, gpus=1)
        pool.demand = Demand()
        await pool.until(lambda: not slurm.queue())


async def test_slurms_reason_is_said_to_whoever_waits(slurm: SlurmLab, folder: Path) -> None:
    shape = dataclasses.replace(SHAPE, flags=("--begin=now+1hour",))
    async with watched(make(slurm, folder, [shape], idle_s=0.5)) as pool:
        pool.demand = ONE
        await pool.until(lambda: "waits for BeginTime" in words(pool, gpus=1))
        pool.demand = Demand()
        await empty(slurm)


async def test_who_waits_for_an_allocation_that_is_busy_is_not_told_that_another_one_is_asked_for(
    slurm: SlurmLab, folder: Path
) -> None:
    """A short run is not worth one, so that none is."""
    async with watched(make(slurm, folder, [dataclasses.replace(SHAPE, maximum=2)], idle_s=1.0)) as pool:
        pool.demand = ONE
        await pool.until(lambda: pool.nodes)
        short = Wanted(Request(gpus=1), expected_s=1.0)
        pool.demand = Demand(waiting=(short,), busy=frozenset({pool.nodes[0].id}))
        assert pool.driver.coming(short) is None
        assert "Slurm is asked for an allocation" in words(pool, gpus=1), "nobody knows how long this one takes"
        pool.demand = Demand()
        await empty(slurm)


def words(pool: Watched, *, gpus: int, needs_s: float = 0.0) -> str:
    said = pool.driver.coming(Wanted(Request(gpus=gpus), needs_s=needs_s))
    return said.words if said is not None else ""
