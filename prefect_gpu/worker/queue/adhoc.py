"""Flows submitted through a worker object: handed to the pool, whose running worker holds the devices."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
from prefect.bundles import aupload_bundle_to_storage, convert_step_to_command, create_bundle_for_flow_run
from prefect.flows import InfrastructureBoundFlow, bind_flow_to_infrastructure
from prefect.results import aresolve_result_storage
from prefect.states import AwaitingRetry
from prefect.utilities.processutils import command_from_string

from prefect_gpu.bundles.storage import launcher_for, read_ready_pool

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun
    from prefect.workers.base import BaseWorker


async def submit_adhoc_run(
    worker: BaseWorker[Any, Any, Any],
    flow: Flow[..., Any],
    parameters: dict[str, Any] | None = None,
    job_variables: dict[str, Any] | None = None,
    task_status: anyio.abc.TaskStatus[FlowRun] | None = None,
    flow_run: FlowRun | None = None,
) -> None:
    """Start a flow in the worker's pool; what a GPU worker does as Prefect's ``_submit_adhoc_run``.

    The worker object is often a temporary one that Prefect makes for the call and that must not claim devices.
    So nothing is run here: the run is created in the pool as scheduled, and the worker that runs takes it.

    Args:
        worker: A worker that is set up; it need not have started.
        flow: The flow, bound to the pool or not.
        parameters: The flow's parameters.
        job_variables: Job variables. Default: those that the flow is bound with.
        task_status: Told the flow run once the run waits in the pool.
        flow_run: A run to repeat under its old id instead of making a new one.
    """
    work_pool = await read_ready_pool(worker.work_pool.name)
    if not isinstance(flow, InfrastructureBoundFlow):
        flow = bind_flow_to_infrastructure(flow, work_pool.name, type(worker), job_variables)
    launcher: Any = flow.launcher or launcher_for(work_pool.storage_configuration)
    flow = flow.with_options(job_variables=job_variables, launcher=launcher)
    flow.work_pool = work_pool.name
    if flow_run is None:
        # Prefect's own function, in a thread because it is a blocking one.
        submit = partial(flow.submit_to_work_pool, **(parameters or {}))
        future = await anyio.to_thread.run_sync(submit)
        flow_run = await worker.client.read_flow_run(future.flow_run_id)
    else:
        flow_run = await _repeat(worker, flow, flow_run)
    if task_status is not None:
        task_status.started(flow_run)


async def _repeat(
    worker: BaseWorker[Any, Any, Any], flow: InfrastructureBoundFlow[..., Any], flow_run: FlowRun
) -> FlowRun:
    """Bundle a flow for a run that exists, and schedule the run again."""
    storage = (await worker.client.read_work_pool(flow.work_pool)).storage_configuration
    assert storage.bundle_upload_step is not None, "read_ready_pool has seen to it"
    upload_step = _started_with(flow.launcher, storage.bundle_upload_step)
    if flow.result_storage is None and storage.default_result_storage_block_id is not None:
        results = await aresolve_result_storage(storage.default_result_storage_block_id)
        flow = flow.with_options(result_storage=results, persist_result=True)
    key = _bundle_key(flow_run)
    bundle = create_bundle_for_flow_run(flow=flow, flow_run=flow_run)
    try:
        await aupload_bundle_to_storage(
            bundle["bundle"],
            key,
            convert_step_to_command(upload_step, key, quiet=True),
            zip_path=bundle["zip_path"],
            upload_step=upload_step,
        )
    finally:
        if bundle["zip_path"] is not None:
            shutil.rmtree(bundle["zip_path"].parent, ignore_errors=True)
    # Forced, because Prefect does not by itself let a run without a deployment leave a final state.
    await worker.client.set_flow_run_state(flow_run.id, AwaitingRetry(), force=True)
    return await worker.client.read_flow_run(flow_run.id)


def _started_with(launcher: Mapping[str, Any] | None, step: dict[str, Any]) -> dict[str, Any]:
    """A pool's upload step, started with what the flow names for that; then the step's packages are not installed."""
    command = (launcher or {}).get("upload")
    if command is None:
        return step
    return {
        name: {key: value for key, value in arguments.items() if key != "requires"} | {"launcher": list(command)}
        for name, arguments in step.items()
    }


def _bundle_key(flow_run: FlowRun) -> str:
    """Where the run's command looks for its bundle. Prefect never lets the command of such a run be changed."""
    command = command_from_string((flow_run.job_variables or {}).get("command") or "")
    if "--key" not in command[:-1]:
        raise ValueError(
            f"Run {flow_run.name!r} was not submitted from Python, so it cannot be repeated from there: "
            "retry it from the UI, or submit a new one."
        )
    return command[command.index("--key") + 1]
