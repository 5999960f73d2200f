"""What a worker says if it cannot serve with the settings that it has."""

from __future__ import annotations

import errno
from pathlib import Path

from prefect_gpu.runtime.drivers.supervisor import NO_ROOM

CANNOT_BE_WRITTEN = (*NO_ROOM, errno.EROFS)
"""Errors of a file system that takes nothing now."""


class SetupError(ValueError):
    """The settings ask for what cannot be. The message names the setting and the remedy."""


def unusable(state_dir: Path, error: OSError) -> SetupError:
    """What is said of a state folder that cannot be written."""
    remedy = "Make room there" if error.errno in NO_ROOM else "See that the worker's user may write there"
    return SetupError(
        f"{error.filename or state_dir} cannot be written: {error.strerror}. {remedy}, or name another state folder: "
        "PREFECT_INTEGRATIONS_GPU_STATE_DIR."
    )
