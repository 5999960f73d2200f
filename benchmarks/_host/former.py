"""The package as an earlier commit has it: a worker of it is upgraded, or rolled back to."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FORMER = "09003ab"
"""The last commit before records, the channel and the history's rows could be read by another version."""


def former_version(commit: str, folder: Path) -> Path | None:
    """The package as a commit has it; None where this is no clone that has the commit."""
    done = subprocess.run(
        ["git", "archive", commit, "prefect_gpu"], cwd=ROOT, capture_output=True, check=False
    )  # fmt: skip
    if done.returncode:
        print(f"no earlier version: {done.stderr.decode(errors='replace').strip()}", file=sys.stderr)
        return None
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data") if sys.version_info >= (3, 12) else archive.extractall(folder)
    return folder
