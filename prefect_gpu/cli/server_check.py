"""The doctor's checks of the Prefect server: is it there, does it know GPU pools, is a worker serving them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from prefect_gpu.runtime.telemetry import Finding

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import WorkPool

POOL_TYPE = "gpu"
_START = (
    "Start one (`prefect server start`), and say where it is: "
    "`prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api`."
)
_TRIED_OUT = "Start what was up in this folder: `prefect-gpu up`."
_TIMEOUT_S = 5.0


def configured_server() -> str | None:
    """The address of the server that Prefect is set to use.

    No check asks without one: Prefect would start a server for each process that asks. Worker and runs would not meet
    there, and it has nobody's blocks.
    """
    from prefect.settings import get_current_settings

    return get_current_settings().api.url


def check_server() -> list[Finding]:
    """Ask the server that Prefect is set to use. Takes a few seconds at most."""
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    from prefect_gpu.storage.history import masked

    configured = configured_server()
    if not configured:
        return [
            Finding(
                "error",
                "Prefect server",
                "No server is set: PREFECT_API_URL is empty.",
                f"{_START} To try things out in this folder only: `prefect-gpu up`.",
            )
        ]
    url = masked(configured)
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        try:
            return asyncio.run(asyncio.wait_for(_ask(url), _TIMEOUT_S))
        except Exception as error:
            # Whatever a network, a proxy or a stranger's server may do ends here, as a finding.
            return [_unreachable(url, error)]


async def _ask(url: str) -> list[Finding]:
    from packaging.version import InvalidVersion, Version
    from prefect import __version__ as own
    from prefect.client.orchestration import get_client

    async with get_client(httpx_settings={"timeout": _TIMEOUT_S}) as client:
        response = await client.hello()
        response.raise_for_status()
        version = str(await client.api_version())
        findings = [Finding("ok", "Prefect server", f"{url}, version {version}")]
        try:
            older = Version(version) < Version(own)
        except InvalidVersion as error:
            raise ValueError("it tells no version") from error
        if older and "prefect.cloud" not in url:
            findings = [
                Finding(
                    "warning",
                    "Prefect server",
                    f"{url} has version {version}, older than Prefect {own} here.",
                    f'Upgrade it where it runs: `pip install "prefect=={own}"`, then `prefect server start`.',
                )
            ]
        return findings + await _check_pools(client)


async def _check_pools(client: PrefectClient) -> list[Finding]:
    pools = [pool for pool in await client.read_work_pools() if pool.type == POOL_TYPE]
    if not pools:
        return [
            Finding(
                "warning",
                "work pools",
                f"There is no work pool of type {POOL_TYPE} yet.",
                f"Create one: `prefect work-pool create gpus --type {POOL_TYPE}`.",
            )
        ]
    findings = []
    for pool in pools:
        subject = f"pool {pool.name}"
        workers = await client.read_workers_for_work_pool(pool.name)
        online = sorted(worker.name for worker in workers if worker.status == "ONLINE")
        if pool.is_paused:
            findings.append(
                Finding(
                    "warning", subject, "It is paused.", f"Resume it: `prefect work-pool resume {quote(pool.name)}`."
                )
            )
        if online:
            findings.append(Finding("ok", subject, f"Served by {', '.join(online)}."))
        else:
            findings.append(
                Finding(
                    "warning",
                    subject,
                    "No worker is online for it, so its runs wait.",
                    f"Start one: `prefect worker start --pool {quote(pool.name)}`.",
                )
            )
        findings += _check_template(pool)
    return findings


def _check_template(pool: WorkPool) -> list[Finding]:
    """Whether runs can say all that this version knows: a pool keeps the template of the version that made it."""
    from prefect_gpu.worker import GpuWorker

    own = GpuWorker.get_default_base_job_template()["variables"]["properties"]
    there = pool.base_job_template.get("variables", {}).get("properties", {})
    lacking = sorted(own.keys() - there.keys())
    if not lacking or not there:  # a pool without a template gets its first worker's
        return []
    return [
        Finding(
            "warning",
            f"pool {pool.name}",
            f"Its base job template lacks {', '.join(lacking)}: what a run says of them has no effect. An earlier "
            "version made the pool, or they were taken out.",
            f"To have them: `prefect work-pool get-default-base-job-template --type {POOL_TYPE} --file gpu.json && "
            f"prefect work-pool update {quote(pool.name)} --base-job-template gpu.json`. That forgets defaults that "
            "were changed in it: write them into gpu.json before.",
        )
    ]


def _unreachable(url: str, error: Exception) -> Finding:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return Finding(
            "error",
            "Prefect server",
            f"{url} refuses these credentials (HTTP {status}).",
            "Prefect Cloud: `prefect cloud login`. A server of your own: "
            "`prefect config set PREFECT_API_AUTH_STRING=user:password`.",
        )
    import httpx

    if isinstance(error, httpx.TransportError | TimeoutError | asyncio.TimeoutError | OSError):
        reason = f"No Prefect server answers at {url}."
    elif status is not None:
        reason = f"What answers at {url} does not behave like a Prefect server (HTTP {status})."
    else:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = f"What answers at {url} does not behave like a Prefect server: {said}"
    return Finding("error", "Prefect server", reason, _TRIED_OUT if _was_tried_out() else _START)


def _was_tried_out() -> bool:
    """Whether the address comes from a `prefect-gpu up` whose processes have ended, with the machine say."""
    from prefect_gpu.lab.tryout import FOLDER

    return (Path.cwd() / FOLDER).is_dir()
