"""Slurm, as slurmrestd lets one talk to it by HTTP: where a worker is on no login node, or a site wants it so.

Each release of Slurm serves some versions of its interface. They differ in how they write times, states and a job's
environment. One is chosen that the server says it has; :data:`TESTED` is the one that this was tried on, and what is
known of later ones is read, too.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from prefect_gpu.runtime.drivers.slurm import accounting
from prefect_gpu.runtime.drivers.slurm.cluster import (
    OUT_OF_MEMORY,
    JobEnd,
    SlurmAway,
    SlurmError,
    SlurmJob,
    error_of,
    has_ended,
    patiently,
)

TESTED = 38
"""The version ``v0.0.38``, of Slurm 22.05."""

_ANSWER_S = 30.0
_UNIX = "unix://"
_OVER_ALREADY = ("already completing or completed", "Invalid job id")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}  # slurmrestd wants some; the batch script sets its own
_FLAGS_FIRST = ("COMPLETING", "CONFIGURING", "REQUEUE_HOLD", "REQUEUED")  # beside a state; squeue shows them instead
_LIFETIME_S = 3600


class Token:
    """The token that is shown to slurmrestd: from a file, from ``SLURM_JWT``, or made by ``scontrol token``.

    A file is read for each question, so that whoever renews it need not tell the worker.
    """

    def __init__(self, file: Path | None = None, conf: Path | None = None) -> None:
        self._file = file
        self._env = {**os.environ} | ({"SLURM_CONF": str(conf)} if conf else {})
        self._made = ""

    async def read(self) -> str:
        """The token.

        Raises:
            SlurmError: There is none.
        """
        if self._file is not None:
            try:
                return self._file.read_text().strip().removeprefix("SLURM_JWT=")
            except OSError as error:
                raise SlurmError(f"The token for slurmrestd cannot be read: {error}") from None
        if given := os.environ.get("SLURM_JWT"):
            return given
        if not self._made:
            self._made = await self._make()
        return self._made

    def refused(self) -> None:
        """The server did not take it: it may be too old."""
        self._made = ""

    async def _make(self) -> str:
        lifetime = f"lifespan={_LIFETIME_S}"
        try:
            process = await asyncio.create_subprocess_exec(
                *("scontrol", "token", lifetime),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
            )
        except FileNotFoundError:
            raise SlurmError(
                "slurmrestd wants a token: name a file in the block (rest_token), set SLURM_JWT, or install scontrol."
            ) from None
        out, complaint = await process.communicate()
        if process.returncode:
            raise error_of(f"`scontrol token` gives no token: {complaint.decode(errors='replace').strip()}")
        return out.decode().strip().removeprefix("SLURM_JWT=")


class SlurmRest:
    """Asks slurmrestd. It is a :class:`.Cluster`.

    Args:
        address: ``http://HOST:PORT``, ``https://…``, or ``unix:///PATH`` of its socket, which needs no token.
        token: What is shown to it.
        patience_s: For so long a question is repeated while slurmctld, or slurmrestd, is away.
    """

    def __init__(self, address: str, token: Token | None = None, patience_s: float = 15.0) -> None:
        self._socket = address.removeprefix(_UNIX) if address.startswith(_UNIX) else None
        self._base = "http://localhost" if self._socket else address.rstrip("/")
        self._token = None if self._socket else token or Token()
        self._patience_s = patience_s
        self._user = getpass.getuser()
        self._served: int | None = None
        self._accounting = accounting.Accounting(self._ends)

    async def cluster_name(self) -> str:
        told = await self._ask("GET", "slurm", "partitions")
        named = (told.get("meta") or {}).get("slurm") or {}
        if name := named.get("cluster"):  # later versions
            return str(name)
        for job in (await self._ask("GET", "slurm", "jobs"))["jobs"]:
            if job.get("cluster"):
                return str(job["cluster"])
        pings = (await self._ask("GET", "slurm", "ping"))["pings"]
        return str(pings[0]["hostname"]) if pings else "cluster"

    async def partitions(self) -> dict[str, str]:
        found = (await self._ask("GET", "slurm", "partitions"))["partitions"]
        return {str(one["name"]): _state(_of_partition(one)).lower() for one in found}

    async def submit(self, script: Path, options: Sequence[str]) -> str:
        version = await self._version()
        job = properties_of(options, version)
        job |= {"current_working_directory": os.getcwd(), "environment": _environment(version)}
        asked = {"script": await asyncio.to_thread(script.read_text), "job": job}
        told = await self._ask_once("POST", "slurm", "job/submit", asked)
        if not told.get("job_id"):
            raise SlurmError("slurmrestd has answered without the number of a job")
        return str(told["job_id"])

    async def jobs(self, prefix: str) -> list[SlurmJob]:
        found = (await self._ask("GET", "slurm", "jobs"))["jobs"]
        ours = (one for one in found if str(one.get("name", "")).startswith(prefix))
        return [_job(one) for one in ours if one.get("user_name") in (None, "", self._user)]

    async def cancel(self, ids: Iterable[str]) -> None:
        for number in ids:
            try:
                await self._ask("DELETE", "slurm", f"job/{number}")
            except SlurmAway:
                raise
            except SlurmError as error:
                if not any(words in str(error) for words in _OVER_ALREADY):
                    raise

    async def ends(self, ids: Iterable[str]) -> Mapping[str, JobEnd]:
        return await self._accounting.ends(ids)

    async def drained(self) -> Mapping[str, str]:
        nodes = (await self._ask("GET", "slurm", "nodes"))["nodes"]
        return {str(one["name"]): str(one.get("reason") or "none") for one in nodes if "DRAIN" in _flags_of(one)}

    async def _ends(self, ids: list[str]) -> Mapping[str, JobEnd]:
        found = {}
        for number in ids:
            for job in (await self._ask_once("GET", "slurmdb", f"job/{number}")).get("jobs") or ():
                state = _state((job.get("state") or {}).get("current"))
                if has_ended(state):
                    found[number] = JobEnd(_by_whom(state, job), OUT_OF_MEMORY in (state, *_states_of_steps(job)))
        return found

    # -- HTTP -----------------------------------------------------------------------------------------------------

    async def _version(self) -> int:
        if self._served is None:
            told = await patiently(lambda: self._request("GET", "/openapi/v3"), self._patience_s)
            found = {int(number) for number in re.findall(r"/slurm/v0\.0\.(\d+)/", " ".join(told.get("paths") or ()))}
            if not found:
                raise SlurmError("slurmrestd serves no version of its interface that is known")
            later = [number for number in found if number >= TESTED]
            self._served = min(later) if later else max(found)
        return self._served

    async def _ask(self, method: str, of: str, what: str) -> dict[str, Any]:
        return await patiently(lambda: self._ask_once(method, of, what), self._patience_s)

    async def _ask_once(self, method: str, of: str, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self._request(method, f"/{of}/v0.0.{await self._version()}/{what}", body)

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers |= {"X-SLURM-USER-NAME": self._user, "X-SLURM-USER-TOKEN": await self._token.read()}
        transport = httpx.AsyncHTTPTransport(uds=self._socket) if self._socket else None
        try:
            async with httpx.AsyncClient(
                base_url=self._base, transport=transport, headers=headers, timeout=_ANSWER_S
            ) as client:
                answer = await client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise SlurmAway(f"slurmrestd does not answer: {str(error) or type(error).__name__}") from None
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            if self._token is not None:
                self._token.refused()
            raise SlurmError("slurmrestd does not take the token: it may be too old, or of another cluster")
        try:
            told = answer.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise SlurmError(f"slurmrestd answers {answer.status_code} {answer.reason_phrase}")
        if words := _complaints(told):
            raise error_of(words)
        if answer.is_error:
            raise SlurmError(f"slurmrestd answers {answer.status_code} {answer.reason_phrase}")
        return told


def _complaints(told: Mapping[str, Any]) -> str:
    said = (str(one.get("error") or one.get("description") or one) for one in told.get("errors") or ())
    return "; ".join(dict.fromkeys(said))


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
    "nodes": ("minimum_nodes", int),
    "ntasks-per-node": ("tasks_per_node", int),
    "cpus-per-task": ("cpus_per_task", int),
    "time": ("time_limit", int),
    "mem": ("memory_per_node", _megabytes),
    **{name: (name, _text) for name in ("partition", "account", "qos", "licenses", "comment", "reservation", "wckey")},
    "constraint": ("constraints", _text),
    "nice": ("nice", int),
}
_EXPORT, _NO_REQUEUE, _GRES, _EXCLUSIVE = "export", "no-requeue", "gres", "exclusive"
KNOWN = frozenset({*_PROPERTIES, _EXPORT, _NO_REQUEUE, _GRES, _EXCLUSIVE})
"""Options of ``sbatch`` that can be said by HTTP."""


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
        elif name == _EXCLUSIVE:
            found["exclusive"] = value or "true"
        elif name == _NO_REQUEUE:
            found["requeue"] = False
        elif name != _EXPORT:
            raise SlurmError(f"{option} cannot be asked of slurmrestd: leave it out, or use Slurm's commands")
    return found


def _environment(version: int) -> dict[str, str] | list[str]:
    return _ENVIRONMENT if version <= TESTED else [f"{name}={value}" for name, value in _ENVIRONMENT.items()]


# -- what is answered -------------------------------------------------------------------------------------------------


def _job(told: Mapping[str, Any]) -> SlurmJob:
    return SlurmJob(
        str(told["job_id"]),
        str(told.get("name", "")),
        _state(told.get("job_state")),
        str(told.get("state_reason") or "None"),
        _seconds(told.get("end_time")),
        _seconds(told.get("start_time")),
    )


def _state(told: Any) -> str:
    """One word of a state, as the commands would say it.

    Example:
        >>> _state("PENDING"), _state(["RUNNING"]), _state(["CANCELLED", "COMPLETING"])
        ('PENDING', 'RUNNING', 'COMPLETING')
    """
    words = [told] if isinstance(told, str) else [str(one) for one in told or ()]
    return next((flag for flag in _FLAGS_FIRST if flag in words), words[0] if words else "")


def _seconds(told: Any) -> float | None:
    """A time as Unix seconds, which later versions write with whether there is one.

    Example:
        >>> _seconds(17), _seconds(0), _seconds({"set": True, "infinite": False, "number": 17}), _seconds({"set": False})
        (17.0, None, 17.0, None)
    """
    if isinstance(told, Mapping):
        told = told.get("number") if told.get("set") and not told.get("infinite") else None
    return float(told) if told and float(told) < 1 << 33 else None


def _of_partition(told: Mapping[str, Any]) -> Any:
    later = told.get("partition")
    return later.get("state") if isinstance(later, Mapping) else told.get("state")


def _flags_of(node: Mapping[str, Any]) -> list[str]:
    state = node.get("state")
    return [*(node.get("state_flags") or ()), *(state if isinstance(state, list) else ())]


def _states_of_steps(job: Mapping[str, Any]) -> list[str]:
    return [_state(step.get("state")) for step in job.get("steps") or ()]


def _by_whom(state: str, job: Mapping[str, Any]) -> str:
    by = (job.get("state") or {}).get("by_user") or job.get("kill_request_user")
    return f"{state} by {by}" if state == "CANCELLED" and isinstance(by, str) else state
