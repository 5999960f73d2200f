"""Slurm, as slurmrestd lets one talk to it by HTTP: where a worker is on no login node, or a site wants it so.

Each release of Slurm serves some versions of its interface: one is chosen that the server says it has. What they write
how is in :mod:`.rest_words`.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from prefect_gpu.runtime.drivers.slurm import accounting
from prefect_gpu.runtime.drivers.slurm.client import called, environment
from prefect_gpu.runtime.drivers.slurm.cluster import (
    JobEnd,
    Partition,
    SlurmAway,
    SlurmError,
    SlurmJob,
    as_allocations,
    error_of,
    patiently,
)
from prefect_gpu.runtime.drivers.slurm.rest_words import (
    TESTED,
    end_of,
    environment_of,
    flags_of,
    job_of,
    partition_of,
    parts_of,
    properties_of,
)

_ANSWER_S = 30.0
_UNIX = "unix://"
_UNHEARD_OF = "Nothing found"  # by slurmdbd, of a job's number
_NO_REASON = "Unspecified error"  # all that is said if slurmctld does not answer, or does not take the token
_OVER_ALREADY = ("already completing or completed", "Invalid job id")
_LIFETIME_S = 3600


class Token:
    """The token that is shown to slurmrestd: from a file, from ``SLURM_JWT``, or made by ``scontrol token``.

    A file is read for each question, so that whoever renews it need not tell the worker.
    """

    def __init__(self, file: Path | None = None, conf: Path | None = None) -> None:
        self._file = file
        self._env = environment(conf)
        self._made = ""
        self._renew_at = 0.0

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
        if not self._made or time.monotonic() > self._renew_at:
            self._made = await self._make()
            self._renew_at = time.monotonic() + _LIFETIME_S / 2
        return self._made

    def refused(self) -> None:
        """The server did not take it: it may be too old."""
        self._made = ""

    async def _make(self) -> str:
        if shutil.which("scontrol") is None:
            raise SlurmError(
                "slurmrestd wants a token: name a file in the block (rest_token), set SLURM_JWT, or install scontrol."
            )
        try:
            told = await called("scontrol", "token", f"lifespan={_LIFETIME_S}", env=self._env)
        except SlurmError as error:
            raise type(error)(f"`scontrol token` gives no token: {error}") from None
        return told.strip().removeprefix("SLURM_JWT=")


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
        """What the cluster calls itself; where its version does not tell that, the host of its controller."""
        told = await self._ask("GET", "slurm", "ping")
        named = (told.get("meta") or {}).get("slurm") or {}
        hosts = [str(one["hostname"]) for one in told.get("pings") or ()]
        return str(named.get("cluster") or "") or next(iter(hosts), "cluster")

    async def partitions(self) -> dict[str, Partition]:
        found = (await self._ask("GET", "slurm", "partitions"))["partitions"]
        return {str(one["name"]): partition_of(one) for one in found}

    async def refusal(self, options: Sequence[str]) -> str:
        return ""  # slurmrestd submits or does not

    async def submit(self, script: Path, options: Sequence[str]) -> str:
        version = await self._version()
        common = {"current_working_directory": os.getcwd(), "environment": environment_of(version)}
        jobs = [properties_of(part, version) | common for part in parts_of(options)]
        asked: dict[str, Any] = {"job": jobs[0]} if len(jobs) == 1 else {"jobs": jobs}
        asked["script"] = await asyncio.to_thread(script.read_text)
        told = await self._ask_once("POST", "slurm", "job/submit", asked)
        if not told.get("job_id"):
            raise SlurmError("slurmrestd has answered without the number of a job")
        return str(told["job_id"])

    async def jobs(self, prefix: str) -> list[SlurmJob]:
        found = (await self._ask("GET", "slurm", "jobs"))["jobs"]
        ours = (one for one in found if str(one.get("name", "")).startswith(prefix))
        return as_allocations(job_of(one) for one in ours if one.get("user_name") in (None, "", self._user))

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
        return {str(one["name"]): str(one.get("reason") or "none") for one in nodes if "DRAIN" in flags_of(one)}

    async def _ends(self, ids: list[str]) -> Mapping[str, JobEnd]:
        found = {}
        for number in ids:
            try:
                told = await self._ask_once("GET", "slurmdb", f"job/{number}")
            except SlurmError as error:
                if _UNHEARD_OF in str(error):
                    continue
                raise
            for job in told.get("jobs") or ():
                if (end := end_of(job)) is not None:
                    found[number] = end
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
        if told.get("job_id"):  # it was submitted, and cannot start now, which is no refusal
            return told
        if words := _complaints(told):
            if _NO_REASON not in words:
                raise error_of(words)
            if self._token is None:
                raise SlurmAway(f"{words} (does slurmctld run?)")
            self._token.refused()
            raise SlurmAway(f"{words} (does slurmctld run, and is the token still good?)")
        if answer.is_error:
            raise SlurmError(f"slurmrestd answers {answer.status_code} {answer.reason_phrase}")
        return told


def _complaints(told: Mapping[str, Any]) -> str:
    said = (
        ": ".join(dict.fromkeys(str(one[key]) for key in ("description", "error") if one.get(key)))
        for one in told.get("errors") or ()
    )
    return "; ".join(dict.fromkeys(said))
