"""Where a model comes from: which code, and which of Prefect's runs."""

from __future__ import annotations

import subprocess
from pathlib import Path


def flow_run_facts() -> dict[str, str]:
    """This flow run, as ``run`` and ``run_url``; empty outside of Prefect."""
    from prefect.runtime import flow_run

    run_id = flow_run.id or ""
    return {"run": run_id, "run_url": (flow_run.ui_url or "") if run_id else ""}


def origin(code: str | Path) -> dict[str, str]:
    """What a version of a model should say of its making: ``code_version``, ``run`` and ``run_url``.

    Args:
        code: The file that trains, as ``__file__`` says it. Its version is the commit of its repository, with
            ``-dirty`` if there are changes that are not committed; outside of a repository, the deployment's version.
    """
    from prefect.runtime import deployment

    return {"code_version": _commit(Path(code).absolute().parent) or deployment.version or "", **flow_run_facts()}


def _commit(folder: Path) -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
