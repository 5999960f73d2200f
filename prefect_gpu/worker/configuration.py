"""The work pool's fields: what the UI form shows and what a job variable may be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prefect.settings import get_current_settings
from prefect.utilities.templating import apply_values
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorkerResult
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from prefect_gpu.request import GpuRequest, check_request, explain, moment_of
from prefect_gpu.runtime.drivers.base import ContainerSpec
from prefect_gpu.settings import GpuSettings
from prefect_gpu.units import parse_bounds, parse_bytes, shown

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse

    from prefect_gpu.scheduling.model.jobs import Request
    from prefect_gpu.scheduling.model.kinds import Wants


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
        description="Folder that the run starts in. If empty, each run gets a temporary folder of its own.",
    )


class _OfContainer(BaseModel):
    image: str | None = Field(
        default=None,
        title="Image",
        description="Image of the container, if the worker starts containers. It needs Python 3.9 or newer, and what "
        "the flow imports.",
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent", title="Image pull policy", description="When a node pulls the image."
    )
    memory_limit: str | None = Field(
        default=None,
        title="Memory limit",
        description="Main memory that the run's container may use, for example 16GiB.",
        examples=["16GiB"],
    )
    shm_size: str | None = Field(
        default=None,
        title="Shared memory",
        description="Size of /dev/shm in the container, which data loaders use, for example 2GiB.",
    )
    volumes: list[str] = Field(
        default_factory=list,
        title="Volumes",
        description="Folders of the node that the container sees, as /on/the/node:/in/the/container, with :ro for "
        "read-only. The worker's setting container_volumes says which there may be.",
    )
    network: str | None = Field(
        default=None,
        title="Network",
        description="Docker network that the container joins. The worker's setting container_networks says "
        "which there may be.",
    )

    @field_validator("memory_limit", "shm_size")
    @classmethod
    def _valid_size(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value:
            parse_bytes(value, field=str(info.field_name))
        return value or None


class GpuVariables(_OfProcess, _OfContainer, BaseVariables):
    """Variables of the base job template."""

    name: str | None = Field(
        default=None,
        title="Name",
        description="Without effect: containers have the names by which a later worker finds them. Labels mark them.",
    )


class GpuJobConfiguration(_OfProcess, _OfContainer, BaseJobConfiguration):
    """One run's configuration, with the template's placeholders filled in."""

    @field_validator("env", "labels", mode="before")
    @classmethod
    def _is_table(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{info.field_name}={shown(value)} is not allowed: give names with their values")
        return value

    @classmethod
    def _base_environment(cls) -> dict[str, str]:
        """Prefect's settings as variables. Prefect takes a tenth of a second to write them, for each run anew."""
        settings = get_current_settings()
        if not _written or _written[0] is not settings:
            _written[:] = settings, super()._base_environment()
        return dict(_written[1])


_written: list[Any] = []  # the settings that were written last, and their variables

_PULL = {"IfNotPresent": "missing", "Always": "always", "Never": "never"}


def container_of(configuration: GpuJobConfiguration, default_image: str | None) -> ContainerSpec:
    """What the run's container is made of.

    Raises:
        ValueError: No image is named, neither by the run nor by the worker's settings.
    """
    image = configuration.image or default_image
    if not image:
        raise ValueError("image is not set: name one in the deployment, the work pool or the worker's settings.")
    sizes = {
        name: parse_bytes(value, field=name) if value else None
        for name, value in (("memory_limit", configuration.memory_limit), ("shm_size", configuration.shm_size))
    }
    return ContainerSpec(
        image,
        _PULL[configuration.image_pull_policy],
        sizes["memory_limit"],
        sizes["shm_size"],
        tuple(configuration.volumes),
        configuration.network or "",
        {name: str(value) for name, value in configuration.labels.items()},
    )


class GpuWorkerResult(BaseWorkerResult):
    """How a run's process ended."""


def merge_job_variables(flow_run: FlowRun, deployment: DeploymentResponse | None) -> dict[str, Any]:
    """The deployment's variables with the run's own over them, as Prefect merges them (``env`` key by key)."""
    merged = dict(deployment.job_variables or {}) if deployment else {}
    own = dict(flow_run.job_variables or {})
    if isinstance(merged.get("env"), dict) and isinstance(own.get("env"), dict):
        own["env"] = merged["env"] | own["env"]
    return merged | own


def check_bounds(request: GpuRequest, settings: GpuSettings) -> None:
    """Stop at what the operator does not let any run ask for.

    Raises:
        BadRequestError: A number is above its setting. The message names field, value, setting and remedy.
    """
    bounds = (
        ("gpus", request.gpus, "most_gpus", settings.most_gpus),
        ("max_gpus", request.max_gpus or 0, "most_gpus", settings.most_gpus),
        ("cpus", request.cpus or 0, "most_cpus", settings.most_cpus),
        ("workers", request.workers, "most_instances", settings.most_instances),
        ("max_workers", request.max_workers or 0, "most_instances", settings.most_instances),
        ("ps", request.ps, "most_instances", settings.most_instances - request.workers),
    )
    for field, value, setting, most in bounds:
        if value > most:
            raise BadRequestError(
                f"{field}={shown(value)} is more than the {most} that this worker allows: ask for {most} or fewer, or "
                f"have its operator raise PREFECT_INTEGRATIONS_GPU_{setting.upper()}={getattr(settings, setting)}."
            )


def read_request(
    flow_run: FlowRun,
    deployment: DeploymentResponse | None,
    work_pool: WorkPool,
    settings: GpuSettings | None = None,
    *,
    due: float = 0.0,
) -> Request:
    """What a waiting run asks for: only the fields that matter for its place are filled in.

    Args:
        settings: The worker's, which say how much a run may ask for; None: the defaults.
        due: When the run is due, in Unix seconds: what a deadline is measured from. The deadline is told in these, too.

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
    check_bounds(request, settings or GpuSettings())
    return scheduler_request(request, due)


def scheduler_request(request: GpuRequest, due: float) -> Request:
    """The same in the scheduler's words.

    Args:
        due: See :func:`read_request`.
    """
    from prefect_gpu.scheduling.model.jobs import Request  # numpy comes with it, and who submits needs none

    return Request(
        gpus=request.gpus,
        gpu_memory_bytes=request.gpu_memory_bytes,
        cpus=request.cpus,
        workers=request.workers,
        servers=request.ps,
        max_gpus=request.max_gpus if request.max_gpus != request.gpus else None,
        max_workers=request.max_workers if request.max_workers != request.workers else None,
        batch_sizes=request.batch_sizes,
        preemptible=request.preemptible
        or request.max_gpus not in (None, request.gpus)
        or request.max_workers not in (None, request.workers),
        exclusive=request.exclusive is not False,
        automatic=request.exclusive is None and request.gpus > 0,
        category=request.category,
        features=tuple(request.features or ()),
        converged="" if request.converged == "ignore" else request.converged,
        owner=request.owner or "",
        priority=request.priority,
        wants=_wants(request),
        time_limit_s=request.time_limit_s,
        deadline_at=None if request.deadline is None else moment_of(request.deadline, due),
        promise=request.deadline is not None and request.deadline_kind == "promise",
    )


def _wants(request: GpuRequest) -> Wants | None:
    """Which devices a request is about; None: any will do."""
    from prefect_gpu.scheduling.model.kinds import Wants

    wants = Wants(
        tuple(request.gpu_kind or ()),
        request.gpu_kind_choice,
        tuple(request.exclude_gpu_kind or ()),
        parse_bounds(request.compute_capability) if request.compute_capability else (),
        request.nvlink,
    )
    return wants if request.gpus and wants != Wants() else None
