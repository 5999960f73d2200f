"""A benchmark with ``--quick``, as its users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def quick(benchmark: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """What it prints. Whether its claims hold is the machine's matter: beside other tests they may not."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--quick", "--json", *arguments]
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert all(set(claim) == {"name", "value", "asked", "holds"} for claim in said["claims"])
    assert done.returncode == (0 if all(claim["holds"] for claim in said["claims"]) else 1), done.stderr
    return said
