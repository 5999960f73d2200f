"""A stand-in for NVIDIA's container toolkit, at the hardware border: no GPU and no driver is anywhere near it.

It is installed into an Engine of a lab as the real one is, as an OCI runtime named ``nvidia`` or as the hook that
dockerd finds on its PATH, and gives a container the stand-in for NVIDIA's library (:mod:`tests.nvml_stub`), which then
tells of the GPUs that the container's environment names. Everything else, Engine, container and what is asked in it, is
real.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests import nvml_stub

_SCRIPT = Path(__file__).with_name("stand_in.py")
_HOOK = "nvidia-container-runtime-hook"  # dockerd looks for this name


class Toolkit:
    """One that is installed.

    Args:
        folder: Its own, which containers' mounts come from.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        nvml_stub.build(folder)
        self.runtime = self._launcher("nvidia-container-runtime")
        self.hook = self._launcher(_HOOK)

    def says(self, *lines: str) -> None:
        """Set which GPUs the machine has: lines as in nvml_stub.c."""
        (self.folder / "state").write_text("".join(f"{line}\n" for line in lines))

    def _launcher(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        path = folder / name
        command = shlex.join([sys.executable, "-I", str(_SCRIPT), name, str(self.folder)])
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
        return path
