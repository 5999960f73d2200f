"""What Prefect asks of every worker, with a real server: docs/prefect-standards.md lists where each point is tested.

Limits, pauses, priorities and two workers are in ``test_queue.py``; ends, cancellations and killed workers in
``test_endings.py``; wrong job variables in ``test_mistakes.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from prefect.blocks.system import Secret
from prefect.client.schemas.actions import VariableCreate
from prefect.client.schemas.objects import FlowRun
from prefect.events.filters import EventAnyResourceFilter, EventFilter, EventNameFilter
from prefect.exceptions import InfrastructureNotAvailable, InfrastructureNotFound, ObjectNotFound

from prefect_gpu.worker import GpuWorker
from tests.live.pool import COLD, LivePool, eventually
from tests.worker.prefect_stand_in import dead_pid

PREFIX = "prefect.worker."


async def test_a_run_bears_its_workers_labels_and_has_a_pid_and_events_that_tell_its_launch_and_its_end(
    served: LivePool, tmp_path: Path
) -> None:
    run_id = await served.submit("crash", how="3")
    await served.until(run_id, "Crashed")

    async def told() -> list[Any]:
        about = EventFilter(
            any_resource=EventAnyResourceFilter(id=[f"prefect.flow-run.{run_id}"]),
            event=EventNameFilter(prefix=[PREFIX]),
        )
        found = (await served.client.read_events(filter=about, limit=50)).events
        return sorted(found, key=lambda event: event.occurred) if len(found) == 2 else []

    submitted, executed = await eventually(told, "both events")
    pool = await served.client.read_work_pool(served.name)
    [worker] = await served.client.read_workers_for_work_pool(served.name)
    assert str(worker.status).endswith("ONLINE") and str(pool.status).endswith(".READY")
    labels = {
        "prefect.worker.name": worker.name,
        "prefect.worker.type": "gpu",
        "prefect.work-pool.name": pool.name,
        "prefect.work-pool.id": str(pool.id),
    }
    run = await eventually(lambda: labelled(served, run_id), "the labels, which may come after the end")
    assert labels.items() <= run.labels.items()
    assert (run.infrastructure_pid or "").startswith(f"{socket.gethostname()}:")
    assert (submitted.event, executed.event) == (f"{PREFIX}submitted-flow-run", f"{PREFIX}executed-flow-run")
    assert executed.follows == submitted.id
    for event in (submitted, executed):
        assert event.resource["prefect.resource.name"] == worker.name
        about = {one.role: one.id for one in event.related}
        assert about["work-pool"] == f"prefect.work-pool.{pool.id}" and about["flow"] == f"prefect.flow.{run.flow_id}"
        assert about["deployment"] == f"prefect.deployment.{run.deployment_id}"
    [ended] = [one for one in executed.related if one.role == "flow-run"]
    assert ended["prefect.infrastructure.status-code"] == "3"
    assert ended["prefect.infrastructure.identifier"] == run.infrastructure_pid


async def labelled(pool: LivePool, run_id: UUID) -> FlowRun | None:
    run = await pool.read(run_id)
    return run if "prefect.worker.name" in run.labels else None


async def test_variables_and_blocks_are_filled_in_environments_are_merged_and_a_run_knows_whose_it_is(
    served: LivePool, tmp_path: Path
) -> None:
    client, template = served.client, (await served.client.read_work_pool(served.name)).base_job_template
    await client.create_variable(VariableCreate(name="contract_region", value="eu-1"))
    await Secret(value="hush").asave("contract-token", overwrite=True)
    deployment = await served.deploy("show_all_variables")
    env = {
        "REGION": "{{ prefect.variables.contract_region }}",
        "TOKEN": "{{ prefect.blocks.secret.contract-token }}",
        "A": "run",
    }
    seen = tmp_path / "seen"
    run_id = await served.submit(
        "show_all_variables", job_variables={"env": env, "env.DOTTED": "1", "env.A": "dotted"}, path=str(seen)
    )
    await served.until(run_id, "Completed")
    variables, _ = json.loads(seen.read_text())
    [worker] = await client.read_workers_for_work_pool(served.name)
    expected = {
        "REGION": "eu-1",
        "TOKEN": "hush",
        "A": "run",
        "DOTTED": "1",
        "PREFECT__FLOW_RUN_ID": str(run_id),
        "PREFECT__WORKER_NAME": worker.name,  # its id is told by Prefect Cloud alone
        "PREFECT__DEPLOYMENT_ID": str(deployment),
        "PREFECT__FLOW_NAME": "show-all-variables",
    }
    assert {name: variables.get(name) for name in expected} == expected
    assert (await client.read_work_pool(served.name)).base_job_template == template

    wrong = await served.submit("plain", job_variables={"env": {"X": "{{ prefect.blocks.secret.no-such }}"}})
    state = await served.until(wrong, "Crashed")
    assert "could not be configured" in (state.message or "") and "no-such" in (state.message or "")


@asynccontextmanager
async def serving_here(pool: LivePool, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GpuWorker]:
    """A worker in this very process, so that it can be asked what only Prefect asks of it."""
    settings = {"state_dir": str(state_dir), "virtual_devices": "1", "learn": "false", "page": "false", **COLD}
    for name, value in (settings | {"pass_environment": "NOTES"}).items():
        monkeypatch.setenv(f"PREFECT_INTEGRATIONS_GPU_{name.upper()}", value)
    monkeypatch.setenv("NOTES", str(pool.notes))
    said: list[str] = []
    worker = GpuWorker(pool.name, name="here")
    starting = asyncio.create_task(worker.start(printer=lambda *words: said.append(" ".join(map(str, words)))))

    async def serves() -> bool:
        assert not starting.done(), starting
        return any("Serving pool" in line for line in said)

    await eventually(serves, "the worker in this process")
    try:
        yield worker
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


@pytest.mark.full
async def test_infrastructure_is_killed_where_it_is_ours_and_else_it_is_said_why_not(
    pool: LivePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of one machine, one of which is killed; and numbers that are nobody's, or another run's by now."""
    other = pool.start_worker(virtual_devices="1", state_dir=tmp_path / "other", **COLD)
    theirs = await pool.submit("train", hold=str(tmp_path / "never"))
    await pool.until_noted(theirs)
    their_pid = await pool.place(theirs)
    async with serving_here(pool, tmp_path / "here", monkeypatch) as worker:
        work_pool = await pool.client.read_work_pool(pool.name)

        async def kill(pid: str, run_id: UUID, grace_seconds: int = 30) -> None:
            configuration = await worker.job_configuration.resolve_for_flow_run(
                await pool.read(run_id), client=worker.client, work_pool=work_pool, worker_name=worker.name
            )
            await worker.kill_infrastructure(
                infrastructure_pid=pid, configuration=configuration, grace_seconds=grace_seconds
            )

        with pytest.raises(InfrastructureNotAvailable, match="under another worker of this machine"):
            await kill(their_pid, theirs)
        other.kill()
        with pytest.raises(InfrastructureNotAvailable, match="under another worker of this machine"):
            await kill(their_pid, theirs)  # it trains on, and is its next worker's
        with pytest.raises(InfrastructureNotAvailable, match="runs on another machine"):
            await kill("elsewhere:1", theirs)
        with pytest.raises(InfrastructureNotFound, match="is not running"):
            await kill(f"{socket.gethostname()}:{dead_pid()}", theirs)
        with pytest.raises(InfrastructureNotFound, match="is not running"):
            await kill(f"{socket.gethostname()}:{os.getpid()}", theirs)  # a number that is a stranger's by now

        ours = await pool.submit("stubborn", hold=str(tmp_path / "never"))
        await pool.until_noted(ours)
        our_pid = await pool.place(ours)
        with pytest.raises(InfrastructureNotFound, match="is not running"):
            await kill(our_pid, theirs)  # a number that is another run's by now
        assert psutil.pid_exists(number(our_pid)) and psutil.pid_exists(number(their_pid))
        await kill(our_pid, ours, grace_seconds=1)
        assert not psutil.pid_exists(number(our_pid))
        await pool.until(ours)
        with pytest.raises(InfrastructureNotFound, match="is not running"):
            await kill(our_pid, ours)
    with pytest.raises(InfrastructureNotAvailable, match="does not serve its pool"):
        await worker.kill_infrastructure("any", worker.job_configuration())
    await pool.cancel(theirs)
    pool.start_worker(virtual_devices="1", state_dir=tmp_path / "other", **COLD)
    await pool.until(theirs, "Cancelled")


def number(infrastructure_pid: str) -> int:
    return int(infrastructure_pid.rpartition(":")[2])


async def test_a_worker_makes_its_pool_where_it_may_with_the_template_that_it_is_given(
    pool: LivePool, tmp_path: Path
) -> None:
    new = f"{pool.name}-new"
    settings = {"PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES": "1", "PREFECT_INTEGRATIONS_GPU_WARM_START": "false"}
    settings |= {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(tmp_path / "state")}

    async def start(*options: str) -> None:
        options = ("--type", "gpu", "--run-once", "--install-policy", "never", *options)
        worker = pool.sandbox.start_worker(new, *options, env=settings, wait=False)
        assert await asyncio.to_thread(worker.popen.wait, 120) == 0, worker.output

    await start("--no-create-pool-if-not-found")
    with pytest.raises(ObjectNotFound):
        await pool.client.read_work_pool(new)
    template = GpuWorker.get_default_base_job_template()
    template["variables"]["properties"]["gpus"]["default"] = 0
    (tmp_path / "template.json").write_text(json.dumps(template))
    await start("--base-job-template", str(tmp_path / "template.json"))
    made = await pool.client.read_work_pool(new)
    assert made.type == "gpu" and made.base_job_template == template
    await pool.client.delete_work_pool(new)


async def test_a_worker_of_one_queue_leaves_the_runs_of_others_alone(pool: LivePool) -> None:
    """Also those that it is told of as they are submitted: the events are of all queues."""
    for queue in ("chosen", "other"):
        await pool.client.create_work_queue(queue, work_pool_name=pool.name)
    before = await pool.submit("plain", queue="other")
    pool.start_worker("--work-queue", "chosen", "--prefetch-seconds", "0", **COLD)
    meanwhile = await pool.submit("plain", queue="other")
    chosen = await pool.submit("plain", queue="chosen")
    await pool.until(chosen, "Completed")
    assert [run.state.name for run in await pool.read_all([before, meanwhile])] == ["Scheduled", "Scheduled"]
    assert pool.noted() == {str(chosen): 1}
