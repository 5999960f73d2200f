"""What a node has sent of a run whose folder it does not see: kept in the launch's folder, as if it were written there.

Each piece is written where it belongs, so one that comes twice, to two workers perhaps, changes nothing.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.drivers.output import KEPT_BYTES, trim
from prefect_gpu.runtime.drivers.slurm import words

_TRIMMED_EVERY = KEPT_BYTES // 4


def is_sent(run_dir: Path) -> bool:
    """Whether a launch was sent to a node that does not see its folder."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads((run_dir / words.PLACE).read_text()).get("sent"))
    return False


def add_output(run_dir: Path, told: dict[str, Any]) -> None:
    """Keep a piece of a run's output. Nothing where there is no such launch: it is over.

    Args:
        told: ``at``, its place in the output, and ``block``.
    """
    if not is_sent(run_dir):
        return
    path, at, block = run_dir / supervisor.OUTPUT, int(told["at"]), base64.b64decode(told["block"])
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(handle, block, at)
    finally:
        os.close(handle)
    if at // _TRIMMED_EVERY != (at + len(block)) // _TRIMMED_EVERY:
        with contextlib.suppress(OSError):  # a file system without holes
            trim(path)


def note_end(run_dir: Path, report: ExitReport) -> None:
    """Keep how a run has ended, for whichever worker comes to ask.

    Raises:
        OSError: It could not be written.
    """
    told = dataclasses.asdict(dataclasses.replace(report, tail=()))
    supervisor.write_json(str(run_dir / supervisor.EXIT), told)
