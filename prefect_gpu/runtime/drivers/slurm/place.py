"""Which node may start a launch: noted in the launch's folder before its agent is asked, and never changed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.slurm import words


def take(run_dir: Path, node: str, *, sent: bool = False) -> bool:
    """Let this node alone start the launch; an empty name: nobody. Exactly one caller ever gets True.

    Args:
        sent: Whether the node does not see this folder, and is sent what it needs.
    """
    temporary = run_dir / f"{words.PLACE}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    supervisor.write_json(str(temporary), {"node": node} | ({"sent": True} if sent else {}))
    try:
        os.link(temporary, run_dir / words.PLACE)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    supervisor.sync_folder(str(run_dir))
    return True


def taken_by(run_dir: Path) -> str:
    """The node that may start the launch; empty: none may, or that cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return str(json.loads((run_dir / words.PLACE).read_text()).get("node", ""))
    return ""


def facts_of(run_dir: Path) -> dict[str, Any]:
    """What is known of a process that has begun: its pid, and whether it was started warm."""
    found = supervisor.read_json(str(run_dir / supervisor.PROCESS)) or {}
    return {"pid": int(found.get("pid", 0)), "warm": bool(found.get("warm", False))}
