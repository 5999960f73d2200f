"""Builds the stand-in for NVIDIA's library and runs Python with it.

It stands at the hardware border: it shows how we handle what NVML answers, not that anything works on a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("nvml_stub.c")
REPOSITORY = SOURCE.parents[2]


def build(folder: Path) -> Path:
    """Compile the stub into `folder` and return the folder, to be put on LD_LIBRARY_PATH."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    library = folder / "libnvidia-ml.so.1"
    command = [str(compiler), "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-O1", "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class NvmlStub:
    """A machine whose driver answers what a test says."""

    def __init__(self, library_folder: Path, state: Path) -> None:
        self._library_folder = library_folder
        self.state = state

    def says(self, *lines: str) -> NvmlStub:
        """Set what the driver answers: one line per driver, GPU or MIG instance; see nvml_stub.c."""
        self.state.write_text("".join(f"{line}\n" for line in lines))
        return self

    def environment(self, **extra: str) -> dict[str, str]:
        """The environment in which a process finds this driver."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        env |= {"LD_LIBRARY_PATH": str(self._library_folder), "NVML_STUB_STATE": str(self.state)}
        env["PYTHONPATH"] = str(REPOSITORY)
        return env | extra

    def run(self, script: str, **extra: str) -> Any:
        """Run a script there; what it prints is read as JSON. A traceback fails the test."""
        done = subprocess.run(
            [sys.executable, "-c", script], env=self.environment(**extra), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
