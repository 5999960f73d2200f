"""A work pool's storage on one machine: a folder for bundles, a folder for results, nothing to configure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from prefect import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import WorkPool, WorkPoolStorageConfiguration
from prefect.exceptions import ObjectNotFound
from prefect.filesystems import LocalFileSystem
from prefect.settings import get_current_settings
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.utilities.slugify import slugify

from prefect_gpu.prefect_client import one_client
from prefect_gpu.server_needed import server_needed
from prefect_gpu.settings import GpuSettings

if TYPE_CHECKING:
    from prefect.bundles import BundleLauncherOverride
    from prefect.client.orchestration import PrefectClient

UPLOAD_STEP = "prefect_gpu.bundles.upload"
EXECUTION_STEP = "prefect_gpu.bundles.execute"


def local_steps(directory: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Prefect's upload and execution steps for a folder on this machine.

    They name this interpreter as their launcher, because Prefect would otherwise start them with ``uv run``.
    """
    arguments = {"launcher": [sys.executable], "directory": _absolute(directory)}
    return {UPLOAD_STEP: dict(arguments)}, {EXECUTION_STEP: dict(arguments)}


def _absolute(path: str | Path) -> str:
    return os.path.abspath(Path(path).expanduser())


def launcher_for(storage: WorkPoolStorageConfiguration) -> BundleLauncherOverride | None:
    """What a flow submitted from here should name as its launcher, if the pool keeps bundles in a local folder.

    This very interpreter, on both sides: it has the flow's packages, and a bundle only opens in the version of
    Python that made it. Without a launcher of the flow's own, Prefect would also record every package that is
    installed here, to install it again where the flow runs.
    """
    if UPLOAD_STEP not in (storage.bundle_upload_step or {}):
        return None
    return {"upload": [sys.executable], "execution": [sys.executable]}


def must_be_of_this_python(launcher: Any) -> None:
    """Refuse an interpreter of another version than this one: it would fail to open the bundle, or die of its code.

    Only what is an interpreter here is asked, as a launcher may also be a command of another machine.

    Raises:
        ValueError: It is of another version. The message says what to do.
    """
    command = (launcher.get("execution") if isinstance(launcher, Mapping) else launcher) or []
    python = command[0] if len(command) == 1 else ""
    if python == sys.executable or not os.path.basename(python).startswith("python") or not os.access(python, os.X_OK):
        return
    code = "import sys; print(*sys.version_info[:2], sep='.')"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    there, here = asked.stdout.strip(), f"{sys.version_info.major}.{sys.version_info.minor}"
    if asked.returncode == 0 and there != here:
        raise ValueError(
            f"launcher={python!r} is Python {there}, and this is Python {here}: a flow that is submitted opens only in "
            f"the version that packed it. Submit it with Python {there}, name a launcher of Python {here}, or deploy "
            "the flow."
        )


def api_is_local(url: str | None = None) -> bool:
    """Whether the Prefect API is on this machine, so that a local folder is seen by submitters and worker alike.

    Args:
        url: The API's address. Default: the one in the settings; none at all means Prefect's own temporary server.
    """
    url = url or get_current_settings().api.url
    host = urlsplit(url).hostname if url else "localhost"
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def folder_of_all(settings: GpuSettings) -> Path | None:
    """A folder that those who submit flows and the worker both see, as far as anybody has said; None: there is none."""
    if settings.bundles is not None:
        return settings.bundles.expanduser()
    return settings.resolved_state_dir if api_is_local() else None


async def ensure_bundle_storage(client: PrefectClient, work_pool: WorkPool, directory: str | Path) -> WorkPool:
    """Give a pool without storage a folder on this machine, so that ``.submit()`` and its results simply work.

    A pool whose storage somebody has configured, even in part, is left alone.

    Args:
        client: Prefect's client.
        work_pool: The pool as read from the API.
        directory: The state folder; bundles go to ``bundles/`` and results to ``results/`` in it.

    Returns:
        The pool as it now is.
    """
    storage = work_pool.storage_configuration
    if storage.bundle_upload_step is not None or storage.bundle_execution_step is not None:
        return work_pool
    upload_step, execution_step = local_steps(Path(directory) / "bundles")
    results = storage.default_result_storage_block_id
    if results is None and not await _has_default_result_storage(client):
        block = LocalFileSystem(basepath=_absolute(Path(directory) / "results"))
        results = await block.asave(f"{slugify(work_pool.name)}-results", overwrite=True, client=client)
    configuration = WorkPoolStorageConfiguration(
        bundle_upload_step=upload_step,
        bundle_execution_step=execution_step,
        default_result_storage_block_id=results,
    )
    await client.update_work_pool(work_pool.name, WorkPoolUpdate(storage_configuration=configuration))
    return await client.read_work_pool(work_pool.name)


async def read_ready_pool(name: str) -> WorkPool:
    """A pool to submit to. One without storage gets a folder, if there is one: see :func:`folder_of_all`.

    Raises:
        ValueError: There is no such pool, it is of another type, or it has no storage. The message says what to do.
        ConnectionError: No server is set, none answers, or it lets nobody in. The message says what to do.
    """
    with server_needed():
        async with get_client() as client:
            try:
                work_pool = await client.read_work_pool(name)
            except ObjectNotFound as error:
                raise _no_pool(name) from error
            _must_grant_gpus(work_pool)
            folder = folder_of_all(GpuSettings())
            if folder is not None:
                work_pool = await ensure_bundle_storage(client, work_pool, folder)
    _must_have_storage(work_pool)
    return work_pool


def read_pool_to_submit_to(name: str) -> WorkPool:
    """The same, for who asks with one client (:func:`~prefect_gpu.prefect_client.one_client`).

    Raises:
        ValueError, ConnectionError: As :func:`read_ready_pool`.
    """
    with server_needed(), one_client() as client:
        try:
            work_pool = client.read_work_pool(name)
        except ObjectNotFound as error:
            raise _no_pool(name) from error
    storage = work_pool.storage_configuration
    if storage.bundle_upload_step is None and storage.bundle_execution_step is None:
        return cast(WorkPool, run_coro_as_sync(read_ready_pool(name)))
    _must_grant_gpus(work_pool)
    _must_have_storage(work_pool)
    return work_pool


def _no_pool(name: str) -> ValueError:
    return ValueError(f"There is no work pool {name!r}: make it with `prefect work-pool create {name} --type gpu`.")


def _must_grant_gpus(work_pool: WorkPool) -> None:
    if work_pool.type != "gpu":
        raise ValueError(
            f"The work pool {work_pool.name!r} is of the type {work_pool.type!r}, which grants no GPUs. Name another "
            "one, or make one: `prefect work-pool create NAME --type gpu`."
        )


def _must_have_storage(work_pool: WorkPool) -> None:
    storage, name = work_pool.storage_configuration, work_pool.name
    steps = [step is not None for step in (storage.bundle_upload_step, storage.bundle_execution_step)]
    if not any(steps):
        raise ValueError(
            f"The work pool {name!r} has no storage for flows that are submitted without a deployment, and Prefect's "
            f"server, {get_current_settings().api.url}, is on another machine. Name a folder that you, the worker and "
            "its runs see at the same path: `export PREFECT_INTEGRATIONS_GPU_BUNDLES=FOLDER`, for the worker, too. Or "
            "use S3, `prefect work-pool storage configure s3 --help`; or a deployment."
        )
    if not all(steps):
        raise ValueError(
            f"The work pool {name!r} has only a part of a storage for flows that are submitted without a "
            "deployment. Configure all of it: `prefect work-pool storage configure s3 --help`."
        )
    closed = closed_folder(storage)
    if closed is not None:
        raise ValueError(
            f"The work pool {name!r} keeps flows that are submitted without a deployment in {closed}, where "
            "this user may not write. Submit as the user of its worker, or let this user write there. Or use "
            "S3, `prefect work-pool storage configure s3 --help`; or a deployment."
        )


def closed_folder(storage: WorkPoolStorageConfiguration) -> Path | None:
    """The folder to which a pool's bundles go, if this user may not write there."""
    step = (storage.bundle_upload_step or {}).get(UPLOAD_STEP)
    if step is None:
        return None
    folder = Path(str(step.get("directory"))).expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # that this user sees
    return None if os.access(there, os.W_OK | os.X_OK) else folder


async def _has_default_result_storage(client: PrefectClient) -> bool:
    """Whether results go somewhere by the user's own choice, which the pool's default would override."""
    if get_current_settings().results.default_storage_block is not None:
        return True
    return (await client.read_server_default_result_storage()).default_result_storage_block_id is not None
