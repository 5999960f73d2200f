"""The work pool's fields: what the UI form shows and what a job variable may be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect.utilities.templating import apply_values
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorkerResult
from pydantic import Field, ValidationError

from prefect_gpu.request import GpuRequest, check_request, explain
from prefect_gpu.scheduling.jobs import Request

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse


class BadRequestError(ValueError):
    """A run's job variables cannot be used. The message names field, value and remedy."""


class _OfProcess(GpuRequest):
    stream_output: bool = Field(
        default=True,
        title="Stream output",
        description="Repeat the run's output in the worker's own output.",
    )
    working_dir: Path | None = Field(
        default=None,
        title="Working directory",
        description="Folder that the run starts in. Left empty, each run gets a temporary one of its own.",
    )


class GpuVariables(_OfProcess, BaseVariables):
    """Variables of the base job template."""


class GpuJobConfiguration(_OfProcess, BaseJobConfiguration):
    """One run's configuration, with the template's placeholders filled in."""


class GpuWorkerResult(BaseWorkerResult):
    """How a run's process ended."""


def merge_job_variables(flow_run: FlowRun, deployment: DeploymentResponse | None) -> dict[str, Any]:
    """The deployment's variables with the run's own over them, as Prefect merges them (``env`` key by key)."""
    merged = dict(deployment.job_variables or {}) if deployment else {}
    own = dict(flow_run.job_variables or {})
    if isinstance(merged.get("env"), dict) and isinstance(own.get("env"), dict):
        own["env"] = merged["env"] | own["env"]
    return merged | own


def read_request(flow_run: FlowRun, deployment: DeploymentResponse | None, work_pool: WorkPool) -> Request:
    """What a waiting run asks for: only the fields that matter for its place are filled in.

    Raises:
        BadRequestError: A value is not allowed.
    """
    template = work_pool.base_job_template
    properties = template.get("variables", {}).get("properties", {})
    defaults = {name: attributes.get("default") for name, attributes in properties.items()}
    values = {name: value for name, value in defaults.items() if value is not None}
    values |= merge_job_variables(flow_run, deployment)
    wanted = {name: template.get("job_configuration", {}).get(name) for name in GpuRequest.model_fields}
    # A placeholder that nothing fills disappears here, and the field's own default holds.
    filled = apply_values({name: value for name, value in wanted.items() if value is not None}, values)
    try:
        request = check_request(**filled)
    except ValidationError as error:
        raise BadRequestError(explain(error)) from None
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    return Request(
        gpus=request.gpus,
        gpu_memory_bytes=request.gpu_memory_bytes,
        cpus=request.cpus,
        workers=request.workers,
        servers=request.ps,
        max_gpus=request.max_gpus if request.max_gpus != request.gpus else None,
        preemptible=request.preemptible or request.max_gpus not in (None, request.gpus),
        exclusive=request.exclusive is not False,
        automatic=request.exclusive is None and request.gpus > 0,
        category=request.category,
        features=tuple(request.features or ()),
        converged="" if request.converged == "ignore" else request.converged,
    )
