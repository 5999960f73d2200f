"""The doctor's checks of this machine. Each answers with findings, and none of them raises."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from prefect_gpu.cli.common import explain_settings, plural, ranges, read_settings
from prefect_gpu.cli.folder_check import check_folder, is_there
from prefect_gpu.runtime.telemetry import Finding, NodeInventory, take_inventory
from prefect_gpu.units import format_bytes

if TYPE_CHECKING:
    from prefect_gpu.settings import GpuSettings


_ELSEWHERE = "export PREFECT_INTEGRATIONS_GPU_STATE_DIR=$HOME/prefect-gpu"


@dataclass(frozen=True)
class Examination:
    """Everything that was found; `node` is None where the settings could not be read."""

    findings: tuple[Finding, ...]
    node: NodeInventory | None


def check_everything() -> Examination:
    """All checks, in the order in which one would set things up."""
    from pydantic import ValidationError

    findings = check_versions()
    try:
        settings = read_settings()
    except ValidationError as error:
        findings += [Finding("error", "settings", *line) for line in explain_settings(error)]
        return Examination(tuple(findings), None)

    from prefect_gpu.cli.blocks_check import check_blocks
    from prefect_gpu.cli.server_check import check_server
    from prefect_gpu.cli.slurm_check import check_slurm
    from prefect_gpu.cli.storage_check import check_checkpoints

    node = take_inventory(
        virtual_devices=settings.virtual_devices,
        virtual_device_memory_bytes=settings.virtual_device_memory_bytes,
    )
    if settings.driver != "slurm" and not settings.slurm:  # there, runs have nodes of Slurm's, and this machine none
        findings += node.findings
    findings += check_host(node)
    findings += check_profile(settings)
    findings += check_warm_start(settings)
    findings += check_state_folder(settings.resolved_state_dir)
    findings += check_checkpoints(settings)
    findings += check_history(settings.resolved_history_url)
    findings += check_spool(settings.resolved_state_dir)
    findings += check_slurm(settings)
    findings += check_blocks(settings)
    findings += check_server()
    return Examination(tuple(findings), node)


def check_versions() -> list[Finding]:
    """Python, Prefect, and two libraries whose newer versions Prefect 3.8's server does not work with."""
    from packaging.version import Version

    from prefect_gpu.worker.server.compatible import TESTED, is_tested

    prefect, fastapi = metadata.version("prefect"), metadata.version("fastapi")
    findings = [Finding("ok", "versions", f"Python {platform.python_version()}, Prefect {prefect}")]
    if not is_tested(prefect):
        findings.append(
            Finding(
                "warning",
                "versions",
                f"prefect-gpu is not tested with Prefect {prefect}.",
                f'Take a version that it is tested with: `pip install "prefect{TESTED}"`.',
            )
        )
    if Version(prefect) < Version("3.9") and Version(fastapi) >= Version("0.151"):
        findings.append(
            Finding(
                "warning",
                "versions",
                f"FastAPI {fastapi} is installed, and the server of Prefect {prefect} does not start with it.",
                'To run a Prefect server here: `pip install "fastapi<0.151"`.',
            )
        )
    sqlalchemy = metadata.version("sqlalchemy")
    if Version(prefect) < Version("3.9") and Version(sqlalchemy) >= Version("2.1"):
        findings.append(
            Finding(
                "warning",
                "versions",
                f"SQLAlchemy {sqlalchemy} is installed: no schedule runs on a server of Prefect {prefect} with it.",
                'To run a Prefect server here: `pip install "sqlalchemy<2.1"`.',
            )
        )
    return findings


def check_host(node: NodeInventory) -> list[Finding]:
    """Cores and memory: nothing to go wrong, but to be seen."""
    text = f"{plural(len(node.cpus), 'core')} ({ranges(node.cpus)}), {format_bytes(node.memory_bytes)} of memory"
    return [Finding("ok", "machine", f"{node.hostname}: {text}")]


def check_profile(settings: GpuSettings) -> list[Finding]:
    """Whether the scheduling profile is known. One that is gives no finding."""
    from prefect_gpu.scheduling.profiles import get_profile

    try:
        get_profile(settings.profile)
    except ValueError as error:
        remedy = "Do without, and have adaptive: `unset PREFECT_INTEGRATIONS_GPU_PROFILE`."
        return [Finding("error", "settings", f"{error}", remedy)]
    return []


def check_warm_start(settings: GpuSettings) -> list[Finding]:
    """Whether runs can start from an interpreter that is warm already."""
    if not settings.warm_start:
        return [Finding("ok", "warm start", "Switched off: each run starts an interpreter of its own.")]
    if not hasattr(os, "fork"):
        remedy = "If that is fine, say so: `export PREFECT_INTEGRATIONS_GPU_WARM_START=false`."
        return [Finding("warning", "warm start", "This system cannot fork, so each run starts cold.", remedy)]
    preload = list(settings.preload)
    missing = [name for name in preload if not _importable(name)]
    if missing:
        return [
            Finding(
                "warning",
                "warm start",
                f"PREFECT_INTEGRATIONS_GPU_PRELOAD names {', '.join(missing)}, which cannot be imported here.",
                f"Install what has {', '.join(missing)} into this environment, or leave it out: "
                f"`export PREFECT_INTEGRATIONS_GPU_PRELOAD={','.join(one for one in preload if one not in missing)}`.",
            )
        ]
    also = f" and {', '.join(preload)}" if preload else ""
    return [Finding("ok", "warm start", f"Runs start from an interpreter that has imported Prefect{also}.")]


def check_state_folder(folder: Path) -> list[Finding]:
    """Whether the worker could write its state there."""
    return check_folder(folder, "state folder", _ELSEWHERE)


def check_history(url: str) -> list[Finding]:
    """Whether the history can be opened and written, and how many runs it knows. It is only looked at."""
    from prefect_gpu.storage.history import History, HistoryError, masked, sqlite_path

    try:
        path = sqlite_path(url)
        if path is not None and not is_there(path):
            found = check_state_folder(path.parent)[0]
            if found.level == "error":
                text = f"{masked(url)} cannot be created: {found.text}"
                remedy = "Keep it elsewhere: `export PREFECT_INTEGRATIONS_GPU_HISTORY_URL=sqlite:///$HOME/history.db`."
                return [Finding("error", "history", text, remedy)]
            return [Finding("ok", "history", f"{masked(url)} (created when a worker starts)")]
        locked = next((one for one in (path, path and path.parent) if one and not os.access(one, os.W_OK)), None)
        if locked is not None:
            remedy = (
                "Let the worker's user write the file and its folder, or run doctor as the user whose it is: "
                f"`sudo -u '#{locked.stat().st_uid}' {quote(sys.executable)} -m prefect_gpu doctor`."
            )
            return [Finding("error", "history", f"{masked(url)}: this user may not write {locked}.", remedy)]
        with History(url, read_only=True) as history:
            history.check_writable()
            return [Finding("ok", "history", f"{masked(url)}, {plural(history.count(), 'finished run')}")]
    except HistoryError as error:
        return [Finding("error", "history", error.what, error.remedy)]


def check_spool(state_dir: Path) -> list[Finding]:
    """Whether rows wait on this disk for the history, or were refused by it."""
    from prefect_gpu.storage.spool import REFUSED, spool_folder

    folder, findings = spool_folder(state_dir), []
    try:
        waiting, refused = list(folder.glob("*/*.json")), len(list(folder.glob(f"*/*{REFUSED}")))
    except OSError:  # this user may not look into the state folder, which is another finding
        return []
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        text = f"{plural(len(waiting), 'finished run')} {verb} in {folder} to be written."
        pool = quote(waiting[0].parent.name)
        remedy = f"The worker writes them as soon as the history can be used: `prefect worker start --pool {pool}`."
        findings.append(Finding("warning", "history", text, remedy))
    if refused:
        text = f"The history has refused {plural(refused, 'row')}, kept in {folder}."
        remedy = f"The worker's log says why. When nobody needs them: `rm {quote(str(folder))}/*/*{REFUSED}`."
        findings.append(Finding("warning", "history", text, remedy))
    return findings


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
