"""What a run asks the pool for: the one model behind ``@gpu(...)``, job variables and the form in the UI.

It lives outside ``prefect_gpu.worker`` so that a training process, which only needs the decorator, does not
import the worker.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from prefect_gpu.units import parse_bounds, parse_bytes, parse_seconds, shown

if TYPE_CHECKING:
    from prefect.client.schemas.objects import WorkPool

DeadlineKind = Literal["best-effort", "promise"]
Converged = Literal["yield", "stop", "ignore"]
Category = Literal["cv", "nlp", "speech", "tabular", "recommendation", "reinforcement", "other"]
KindChoice = Literal["listed", "ends-first"]
CATEGORIES: tuple[str, ...] = get_args(Category)

_LEAST_MEMORY = 1_000_000  # bytes. Who asks for 10 means 10 GiB: with 10 bytes, any number would share a device
_MOST_SAMPLES = 1_000_000_000
_LAST = datetime(9000, 1, 1, tzinfo=timezone.utc).timestamp()  # the last moment of a deadline, counted from 1970
_REMEDIES = {
    "gpus": "give a whole number, 0 for a flow that needs no GPU",
    "gpu_memory": "write a number and a unit, such as 6GiB or 500MB, or leave it out",
    "cpus": "give a whole number of CPU cores from 1 up, or leave it out",
    "gpu_kind": 'give names of kinds as `prefect-gpu devices` shows them, such as "A100" or ["H100", "A100"]',
    "gpu_kind_choice": "choose listed or ends-first, or leave it out",
    "exclude_gpu_kind": 'give names of kinds, such as "T4" or ["T4", "P100"], or leave it out',
    "compute_capability": "write bounds, such as >=8.0 or >=7.5,<9, or leave it out",
    "nvlink": "give True or False",
    "workers": "give the number of instances that train together, 1 for a run that trains alone",
    "preemptible": "give True or False",
    "max_gpus": "give a number of GPUs that is not below `gpus`, or leave it out",
    "max_workers": "give a number of instances that is not below `workers`, or leave it out",
    "batch_size": "give the samples of the smallest batch, from 1 to a billion, or leave it out",
    "max_batch_size": "give a number of samples that is not below `batch_size`, at most a billion, or leave it out",
    "ps": "give the number of parameter servers, 0 for none",
    "category": f"choose one of {', '.join(CATEGORIES)}, or leave it out",
    "exclusive": "give True or False, or leave it out to let the pool decide",
    "converged": "choose one of yield, stop, ignore, or leave it out",
    "owner": "give the name of whoever the run is for, or leave it out",
    "priority": "give a whole number from -1000 to 1000, 0 for a run like any other",
    "time_limit": "write a length of time, such as 2h or 45min, or leave it out",
    "deadline": "write a length of time after the submission, such as 6h, or a date with its time zone, such as "
    "2026-03-01T18:00+01:00, or leave it out",
    "deadline_kind": "choose best-effort or promise, or leave it out",
    "features": 'give a list of parameter names, such as ["lr", "model.width"], or leave it out',
}


class GpuRequest(BaseModel):
    """What one run needs. Everything has a default."""

    model_config = ConfigDict(validate_default=False)

    gpus: int = Field(
        default=1,
        ge=0,
        title="GPUs",
        description="How many GPUs the run needs. 0 for a flow that only uses the CPU or starts other flows.",
    )
    gpu_memory: str | None = Field(
        default=None,
        title="GPU memory",
        description="Memory that the run needs on each of its GPUs, for example 6GiB. "
        "Leave empty if you do not know: the run then gets whole GPUs.",
        examples=["6GiB", "500MB"],
    )
    gpu_kind: list[str] | str | None = Field(
        default=None,
        title="Kinds of GPU",
        description="Names of the kinds of GPU that the run may get, best first, for example H100 and A100. A name "
        "fits if all its words are in the GPU's name. Leave empty if any will do: the pool then chooses by how fast "
        "the program is on each.",
        examples=[["H100", "A100"]],
    )
    gpu_kind_choice: KindChoice = Field(
        default="listed",
        title="Which of these kinds",
        description="listed: the first of them that is free. ends-first: the one on which the run is expected to end "
        "first, also if it has to wait for it.",
    )
    exclude_gpu_kind: list[str] | str | None = Field(
        default=None,
        title="Kinds that will not do",
        description="Names of the kinds of GPU that the run must not get.",
        examples=[["T4"]],
    )
    compute_capability: str | None = Field(
        default=None,
        title="Compute capability",
        description="Bounds of the GPU's compute capability, for example >=8.0.",
        examples=[">=8.0"],
    )
    nvlink: bool = Field(
        default=False,
        title="Connected by NVLink",
        description="Whether those GPUs of the run that are on one node must be connected over NVLink.",
    )
    cpus: int | None = Field(
        default=None,
        ge=1,
        title="CPU cores",
        description="How many CPU cores the run needs, for loading data for example. "
        "Leave empty to let the pool decide.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        title="Workers",
        description="How many instances of the run train together, each on GPUs of its own (`gpus` is for each of "
        "them). They start and end together, and find each other by the variables that torchrun sets.",
    )
    ps: int = Field(
        default=0,
        ge=0,
        title="Parameter servers",
        description="How many instances without a GPU serve the workers. Their ranks come after the workers'.",
    )
    max_gpus: int | None = Field(
        default=None,
        ge=1,
        title="Most GPUs",
        description="Most GPUs that the run can use. It gets between `gpus` and this many, and their number changes "
        "as other runs start and end. The run is then stopped at a checkpoint, and continues from there.",
    )
    max_workers: int | None = Field(
        default=None,
        ge=1,
        title="Most workers",
        description="Most instances that can train together. The run has between `workers` and this many, on one node "
        "or on several, and their number changes as other runs start and end. All of them are then stopped at a "
        "checkpoint, and continue from there.",
    )
    batch_size: int | None = Field(
        default=None,
        ge=1,
        le=_MOST_SAMPLES,
        title="Smallest batch",
        description="Samples of the smallest batch that the run may train with, of all its GPUs together. It is for "
        "runs whose number of GPUs changes: with `max_batch_size`, the pool chooses the batch together with the GPUs.",
    )
    max_batch_size: int | None = Field(
        default=None,
        ge=1,
        le=_MOST_SAMPLES,
        title="Largest batch",
        description="Samples of the largest batch that the run may train with. The run reads the one that was chosen "
        "as `run.batch_size`.",
    )
    preemptible: bool = Field(
        default=False,
        title="May be stopped",
        description="Whether the run may be stopped at a checkpoint, to make room for other runs or to continue "
        "elsewhere. It must offer checkpoints (`run.report(checkpoint=...)`) and begin with `run.restore()`.",
    )
    category: Category | None = Field(
        default=None,
        title="Kind of training",
        description="What kind of model is trained: cv (images), nlp (text), speech, tabular, recommendation, "
        "reinforcement or other. It is kept in the history.",
    )
    exclusive: bool | None = Field(
        default=None,
        title="GPUs for this run alone",
        description="Whether the run has its GPUs for itself. Leave empty to let the pool decide: the run shares a GPU "
        "once earlier runs have shown what the program needs. False: the run shares its GPUs with runs that fit, if "
        "it says how much memory it needs.",
    )

    features: list[str] | None = Field(
        default=None,
        title="Parameters that matter",
        description="Names of the flow's parameters that say what the run needs, with dots for nested ones, for "
        "example model.width. Leave empty to let the pool find out from all of them.",
        examples=[["lr", "model.width"]],
    )

    converged: Converged = Field(
        default="yield",
        title="When its loss stands still",
        description="What happens when the loss that the run reports stands still. yield: the run gets less of a GPU "
        "that it shares with runs that still learn, until its loss moves again. stop: it also ends its training "
        "early and keeps its best checkpoint. ignore: nothing.",
    )

    owner: str | None = Field(
        default=None,
        max_length=200,
        title="Owner",
        description="Who the run is for: a person, a team, a project. Where the pool is divided among owners, the run "
        "counts as this one's. Leave empty to let the pool find out (its worker's setting owner_from).",
        examples=["ada", "vision"],
    )
    priority: int = Field(
        default=0,
        ge=-1000,
        le=1000,
        title="Priority",
        description="Runs of a higher priority go first, of those in the same work queue and, where the pool is "
        "divided among owners, of the same owner.",
    )

    time_limit: str | None = Field(
        default=None,
        title="Time limit",
        description="How long the run may hold its GPUs in all, for example 2h. Time in which it waits does not count, "
        "nor does time after it was stopped for others. At the limit the run saves a checkpoint, is stopped, and ends "
        "as TimedOut.",
        examples=["2h", "45min"],
    )

    deadline: str | None = Field(
        default=None,
        title="Deadline",
        description="When the run is to have ended: a length of time after it is due, for example 6h, or a date with "
        "its time zone, for example 2026-03-01T18:00+01:00.",
        examples=["6h", "2026-03-01T18:00+01:00"],
    )

    deadline_kind: DeadlineKind = Field(
        default="best-effort",
        title="Kind of deadline",
        description="best-effort: the run is preferred as its deadline comes near, and runs in any case. promise: the "
        "pool answers at once. It promises the deadline, or refuses the run and names the earliest date that it could "
        "promise.",
    )

    @field_validator("owner", mode="before")
    @classmethod
    def _valid_owner(cls, value: Any) -> Any:
        return (value.strip() or None) if isinstance(value, str) else value

    @field_validator("time_limit", mode="before")
    @classmethod
    def _valid_limit(cls, value: Any) -> Any:
        if value is None or value == "":
            return None
        parse_seconds(value, field="time_limit")
        return str(value)

    @field_validator("deadline", mode="before")
    @classmethod
    def _valid_deadline(cls, value: Any) -> Any:
        if value is None or value == "":
            return None
        if isinstance(value, timedelta):
            value = value.total_seconds()
        text = value.isoformat() if isinstance(value, datetime) else str(value)
        if moment_of(text, 0.0) > _LAST:
            raise ValueError("it is beyond all dates")
        return text

    @field_validator("deadline_kind", mode="before")
    @classmethod
    def _default_kind(cls, value: Any) -> Any:
        return "best-effort" if value is None or value == "" else value

    @field_validator("gpu_memory", mode="before")
    @classmethod
    def _valid_memory(cls, value: Any) -> Any:
        if value is None or value == "":  # an emptied field of the UI form
            return None
        if parse_bytes(value, field="gpu_memory") < _LEAST_MEMORY:
            raise ValueError("a unit is missing")
        return str(value)

    @field_validator("gpu_kind", "exclude_gpu_kind", mode="before")
    @classmethod
    def _named_kinds(cls, value: Any) -> Any:
        if value is None or value == "":
            return None
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) and one.strip() for one in names):
            raise ValueError("names are needed")
        return list(dict.fromkeys(one.strip() for one in names)) or None

    @field_validator("gpu_kind_choice", mode="before")
    @classmethod
    def _default_choice(cls, value: Any) -> Any:
        return "listed" if value is None or value == "" else value

    @field_validator("compute_capability", mode="before")
    @classmethod
    def _valid_capability(cls, value: Any) -> Any:
        if value is None or value == "":
            return None
        parse_bounds(value if isinstance(value, str) else "")
        return value

    @field_validator("nvlink", mode="before")
    @classmethod
    def _default_links(cls, value: Any) -> Any:
        return False if value is None or value == "" else value

    @field_validator("converged", mode="before")
    @classmethod
    def _default_converged(cls, value: Any) -> Any:
        return "yield" if value is None or value == "" else value

    @field_validator("features")
    @classmethod
    def _named_features(cls, value: list[str] | None) -> list[str] | None:
        names = [name.strip() for name in value or ()]
        if not all(names):
            raise ValueError("a name is empty")
        return list(dict.fromkeys(names)) or None

    @field_validator(
        "gpus", "cpus", "workers", "ps", "max_workers", "batch_size", "max_batch_size", "priority", mode="before"
    )
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        if isinstance(value, bool):  # True would pass as 1
            raise ValueError("a number is needed, not True or False")
        return value

    @model_validator(mode="after")
    def _enough_at_most(self) -> GpuRequest:
        if self.deadline_kind == "promise" and self.deadline is None:
            raise ValueError("deadline_kind='promise' without a deadline is not allowed: say when, as in deadline='6h'")
        if self.max_gpus is not None and self.max_gpus < self.gpus:
            raise ValueError(f"max_gpus={self.max_gpus} is below gpus={self.gpus}: give at least as many")
        if self.max_workers is not None and self.max_workers < self.workers:
            raise ValueError(f"max_workers={self.max_workers} is below workers={self.workers}: give at least as many")
        if self.max_workers is not None and self.max_workers > self.workers:
            self._may_vary_its_workers(f"max_workers={self.max_workers}")
        if self.batch_size is not None or self.max_batch_size is not None:
            self._may_vary_its_batch(self.batch_size, self.max_batch_size)
        return self

    def _may_vary_its_batch(self, least: int | None, most: int | None) -> None:
        if least is None or most is None:
            raise ValueError(
                f"batch_size={least} with max_batch_size={most} is not allowed: give the smallest and the largest "
                "batch that the run may train with, or leave both out"
            )
        if most < least:
            raise ValueError(f"max_batch_size={most} is below batch_size={least}: give at least as many samples")
        if (self.max_gpus or 0) <= self.gpus and (self.max_workers or 0) <= self.workers:
            raise ValueError(
                f"batch_size={least} with a fixed number of GPUs is not allowed: the pool chooses the batch where that "
                "number changes. Give a range of workers or of gpus, such as workers=(1, 8), or leave batch_size out"
            )
        gpus = self.gpus * self.workers
        if gpus and -(-least // gpus) * gpus > most:
            raise ValueError(
                f"batch_size=({least}, {most}) has no batch that can be divided among {gpus} GPUs, the fewest of this "
                f"run: make max_batch_size at least {-(-least // gpus) * gpus}"
            )

    def _may_vary_its_workers(self, said: str) -> None:
        if self.gpus == 0:
            raise ValueError(f"{said} with gpus=0 is not allowed: only workers with GPUs vary in number; leave it out")
        if self.ps > 0:
            raise ValueError(
                f"{said} with ps={self.ps} is not allowed: beside parameter servers, the number of workers is fixed; "
                "leave one of the two out"
            )
        if self.max_gpus is not None and self.max_gpus > self.gpus:
            raise ValueError(
                f"{said} with max_gpus={self.max_gpus} is not allowed: a run varies in its workers, or in its GPUs on "
                "one node; leave one of the two out"
            )

    @property
    def batch_sizes(self) -> tuple[int, int] | None:
        """Samples of the smallest and of the largest batch, where the pool chooses it; else None."""
        if self.batch_size is None or self.max_batch_size is None:
            return None
        return self.batch_size, self.max_batch_size

    @property
    def time_limit_s(self) -> float | None:
        """Seconds for which it may hold its GPUs; None: without limit."""
        return None if self.time_limit is None else parse_seconds(self.time_limit, field="time_limit")

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Memory asked for on each GPU in bytes, or None where nothing was asked for."""
        return None if self.gpu_memory is None else parse_bytes(self.gpu_memory, field="gpu_memory")


def moment_of(deadline: str, due: float) -> float:
    """When a deadline is, in Unix seconds.

    Args:
        deadline: As in `GpuRequest`.
        due: When the run is due, from which on a length of time counts; Unix seconds.

    Raises:
        ValueError: It is neither a length of time nor a date with its time zone.

    Example:
        >>> moment_of("2min", 1000.0), moment_of("1970-01-01T01:00+00:00", 0.0)
        (1120.0, 3600.0)
    """
    try:
        date = datetime.fromisoformat(deadline.strip().replace("Z", "+00:00"))
    except ValueError:
        return due + parse_seconds(deadline, field="deadline")
    if date.tzinfo is None:
        raise ValueError("the time zone is missing")
    return date.timestamp()


def check_request(**values: Any) -> GpuRequest:
    """Read a request, with an error that a person can act on.

    Args:
        values: Fields of `GpuRequest`.

    Raises:
        ValueError: A value is not allowed. The message names the field, the value and the remedy.

    Example:
        >>> check_request(gpus=2, gpu_memory="6GiB").gpu_memory_bytes
        6442450944
    """
    try:
        return GpuRequest(**values)
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """The problems of a validation error, one sentence each: field, value, remedy."""
    problems = []
    for problem in error.errors():
        field = str(problem["loc"][0]) if problem["loc"] else "request"
        ours = str(problem.get("ctx", {}).get("error", ""))
        whole = field not in _REMEDIES and ours.startswith(f"{field}=")
        if ours and (whole or not problem["loc"]):  # it names its field itself, or several fields together
            problems.append(f"{ours.rstrip('.')}.")
            continue
        remedy = _REMEDIES.get(field, problem["msg"])
        problems.append(f"{field}={shown(problem['input'])} is not allowed: {remedy}.")
    return " ".join(problems)


def check_job_variable_names(names: set[str], known: set[str]) -> None:
    """Stop at a misspelt argument, which would otherwise become a job variable that nobody reads.

    Raises:
        ValueError: A name looks like one of the known ones.
    """
    for name in sorted(names - known):
        if close := difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75):
            # `num_gpus` looks more like `max_gpus`, and means `gpus`.
            meant = next((word for word in name.split("_") if word in known), close[0])
            raise ValueError(f"There is no argument {name!r}: did you mean {meant!r}?")


def said_in_vain(names: Iterable[str], work_pool: WorkPool) -> str:
    """What to tell who names job variables that a pool does not have, and Prefect passes over; empty: it has them."""
    known = set(work_pool.base_job_template.get("variables", {}).get("properties", {}))
    unknown = sorted(name for name in names if known and name.split(".")[0] not in known)
    if not unknown:
        return ""
    pool = work_pool.name
    words = f"Work pool {pool!r} has no job variable {' and no '.join(map(repr, unknown))}"
    remedy = f"`prefect work-pool inspect {shlex.quote(pool)}` shows those that it has."
    if any(name.split(".")[0] in GpuRequest.model_fields for name in unknown):  # spelt well
        remedy = (
            "An earlier version of prefect-gpu made the pool, or its base job template was changed: "
            "`prefect-gpu doctor` says how to bring it up to date."
        )
    return f"{words}, so what is said about it has no effect. {remedy}"
