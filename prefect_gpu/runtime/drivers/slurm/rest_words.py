"""What slurmrestd is told of a job, and how it tells of jobs, nodes and partitions, which depends on its version.

:data:`TESTED` is the version that this was tried on. Later ones write times, states and a job's environment in other
ways; those are known from their documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect_gpu.runtime.drivers.slurm.cluster import (
    OUT_OF_MEMORY,
    JobEnd,
    Partition,
    SlurmError,
    SlurmJob,
    has_ended,
)
from prefect_gpu.runtime.drivers.slurm.shapes import COMPONENT

TESTED = 38
"""The version ``v0.0.38``, of Slurm 22.05."""

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}  # slurmrestd wants some; the batch script sets its own
_FLAGS_FIRST = ("COMPLETING", "CONFIGURING", "REQUEUE_HOLD", "REQUEUED")  # beside a state; squeue shows them instead

# -- what is submitted ------------------------------------------------------------------------------------------------


def _text(value: str) -> str:
    return value


def _megabytes(value: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", value.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{value!r} is no amount of memory: write 64G")
    factor = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[found[2].upper()]
    return max(1, int(int(found[1]) * factor))


_PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "job-name": ("name", _text),
    "output": ("standard_output", _text),
    "open-mode": ("open_mode", _text),
    "ntasks-per-node": ("tasks_per_node", int),
    "cpus-per-task": ("cpus_per_task", int),
    "time": ("time_limit", int),
    "mem": ("memory_per_node", _megabytes),
    **{name: (name, _text) for name in ("partition", "account", "qos", "licenses", "comment", "reservation", "wckey")},
    "constraint": ("constraints", _text),
    "nice": ("nice", int),
}
_EXPORT, _NO_REQUEUE, _GRES, _NODES, _EXCLUSIVE = "export", "no-requeue", "gres", "nodes", "exclusive"
_NO_MINUTES = 0xFFFFFFFE  # from here on, Slurm says that there are none, or no end of them
KNOWN = frozenset({*_PROPERTIES, _EXPORT, _NO_REQUEUE, _GRES, _NODES, _EXCLUSIVE})
"""Options of ``sbatch`` that can be said by HTTP."""


def parts_of(options: Sequence[str]) -> list[list[str]]:
    """The options of each part of a job; one that is not heterogeneous has one part.

    Example:
        >>> parts_of(["--nodes=2", ":", "--nodes=1", "--mem=4G"])
        [['--nodes=2'], ['--nodes=1', '--mem=4G']]
    """
    found: list[list[str]] = [[]]
    for option in options:
        if option == COMPONENT:
            found.append([])
        else:
            found[-1].append(option)
    return found


def properties_of(options: Sequence[str], version: int) -> dict[str, Any]:
    """What options of ``sbatch`` are by HTTP.

    Raises:
        SlurmError: One of them cannot be said.

    Example:
        >>> properties_of(["--partition=gpu", "--mem=4G", "--gres=gpu:a100:2", "--no-requeue", "--export=NIL"], 38)
        {'partition': 'gpu', 'memory_per_node': 4096, 'gres': 'gpu:a100:2', 'requeue': False}
    """
    found: dict[str, Any] = {}
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name in _PROPERTIES:
            written, of = _PROPERTIES[name]
            try:
                found[written] = of(value)
            except ValueError as error:
                raise SlurmError(f"{option}: {error}") from None
        elif name == _GRES:
            later = ",".join(part.replace("gpu", "gres/gpu", 1) for part in value.split(","))
            found |= {"gres": value} if version <= TESTED else {"tres_per_node": later}
        elif name == _NODES:
            found["nodes"] = [int(value), int(value)] if version <= TESTED else value
        elif name == _EXCLUSIVE:
            found["exclusive"] = value or "true"
        elif name == _NO_REQUEUE:
            found["requeue"] = False
        elif name != _EXPORT:
            raise SlurmError(f"{option} cannot be asked of slurmrestd: leave it out, or use Slurm's commands")
    return found


def environment_of(version: int) -> dict[str, str] | list[str]:
    return _ENVIRONMENT if version <= TESTED else [f"{name}={value}" for name, value in _ENVIRONMENT.items()]


# -- what is answered -------------------------------------------------------------------------------------------------


def job_of(told: Mapping[str, Any]) -> SlurmJob:
    whole = _number(told.get("het_job_id"))
    return SlurmJob(
        f"{whole}+{_number(told.get('het_job_offset'))}" if whole else str(told["job_id"]),
        str(told.get("name", "")),
        state_of(told.get("job_state")),
        str(told.get("state_description") or told.get("state_reason") or "None"),  # as squeue does
        _seconds(told.get("end_time")),
        _seconds(told.get("start_time")),
        str(told.get("nodes") or ""),
        str(told.get("comment") or ""),
    )


def state_of(told: Any) -> str:
    """One word of a state, as the commands would say it.

    Example:
        >>> state_of("PENDING"), state_of(["RUNNING"]), state_of(["CANCELLED", "COMPLETING"])
        ('PENDING', 'RUNNING', 'COMPLETING')
    """
    words = [told] if isinstance(told, str) else [str(one) for one in told or ()]
    return next((flag for flag in _FLAGS_FIRST if flag in words), words[0] if words else "")


def _number(told: Any) -> int:
    """A number, which later versions write with whether there is one; 0: there is none.

    Example:
        >>> _number(17), _number(None), _number({"set": True, "infinite": False, "number": 17}), _number({"set": False})
        (17, 0, 17, 0)
    """
    if isinstance(told, Mapping):
        told = told.get("number") if told.get("set") and not told.get("infinite") else None
    return int(told or 0)


def _seconds(told: Any) -> float | None:
    """A time as Unix seconds.

    Example:
        >>> _seconds(17), _seconds(0)
        (17.0, None)
    """
    seconds = _number(told)
    return float(seconds) if 0 < seconds < 1 << 33 else None


def partition_of(told: Mapping[str, Any]) -> Partition:
    """A partition."""
    later = told.get("partition")
    state = state_of(later.get("state") if isinstance(later, Mapping) else told.get("state"))
    most = told.get("maximums")
    minutes = _number(most.get("time") if isinstance(most, Mapping) else told.get("max_time_limit"))
    return Partition(state.lower(), str(minutes) if 0 < minutes < _NO_MINUTES else "infinite")


def flags_of(node: Mapping[str, Any]) -> list[str]:
    """What holds of a node beside its state, such as ``DRAIN``; some versions write both in one list."""
    state = node.get("state")
    return [*(node.get("state_flags") or ()), *(state if isinstance(state, list) else ())]


def end_of(job: Mapping[str, Any]) -> JobEnd | None:
    """How a job ended, as slurmdbd knows it; None: it has not."""
    told = job.get("state") or {}
    state, by = state_of(told.get("current")), told.get("by_user") or job.get("kill_request_user")
    steps = [state_of(step.get("state")) for step in job.get("steps") or ()]
    if not has_ended(state):
        return None
    words = f"{state} by {by}" if state == "CANCELLED" and isinstance(by, str) else state
    return JobEnd(words, OUT_OF_MEMORY in (state, *steps))
