"""What must outlive the worker: one small file for each launched run, written before anything is launched.

A new worker finds here every run that the old one may have started: which process, which devices, which token.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.codec import build, plain
from prefect_gpu.scheduling.model.jobs import Request


@dataclass
class RunRecord:
    """One launch of one run.

    Attributes:
        run_id: The flow run's id.
        token: What the run shows on the channel; made for this launch alone.
        session: The process that the token is bound to, once it has connected.
        known: What was known at submission (flow, deployment, parameters, ...), for the history.
        times: Unix seconds of ``submitted``, ``granted``, ``launched`` and of each phase entered.
        attempt: 1 for the first launch of the flow run.
        gated: Whether it was launched behind another run, and so waits at its gate until that is opened.
        behind: The run that it waits for; None once its gate is open.
        weight: Its share of its devices, 1 if it gives way to nobody.
        speeds: Of an elastic run, what it did on each number of devices, in this launch and those before; see
            :class:`~prefect_gpu.estimation.throughput.speeds.Measured`.
        leaving: Why it is being stopped to carry on later or elsewhere; empty if it is not.
    """

    run_id: str
    name: str
    pool: str
    queue: str
    token: str
    request: Request
    placement: Placement
    attempt: int = 1
    session: str | None = None
    warm: bool | None = None
    cancelled: bool = False
    gated: bool = False
    behind: str | None = None
    weight: float = 1.0
    leaving: str = ""
    speeds: dict[str, list[float]] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)


class RecordStore:
    """The records of one pool, each in a folder of its own that also holds the driver's files and the output.

    A folder appears and disappears in one step, whenever the worker is killed: it is made, and taken apart, aside.
    """

    def __init__(self, state_dir: Path, pool: str) -> None:
        self._root = state_dir / "runs"
        self._aside = state_dir / "unfinished" / pool
        self._pool = pool

    def clean_up(self) -> None:
        """Remove what a worker that was killed had not yet made, or not yet removed."""
        shutil.rmtree(self._aside, ignore_errors=True)

    def create(self, record: RunRecord) -> Path:
        """Make the folder of a launch and write its record."""
        name = f"{record.run_id}-{time.time_ns():x}"
        making, folder = self._aside / name, self._root / name
        self._root.mkdir(parents=True, exist_ok=True)
        making.mkdir(parents=True, mode=0o700)
        try:
            self.write(making, record)
            making.rename(folder)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        return folder

    def write(self, folder: Path, record: RunRecord) -> None:
        """Replace the record in one step, so that a reader sees the old one or the new one and never half of one."""
        temporary = folder / "record.json.tmp"
        temporary.write_text(json.dumps(record, default=plain))
        os.chmod(temporary, 0o600)  # it holds the token
        temporary.replace(folder / "record.json")

    def remove(self, folder: Path) -> None:
        """The launch is finalised: remove everything about it.

        Were its files removed one by one, a worker killed meanwhile would leave some of them for ever, and a supervisor
        that comes too late to start a launch that was revoked could find no claim any more and start it.
        """
        removing = self._aside / folder.name
        try:
            self._aside.mkdir(parents=True, exist_ok=True)
            folder.rename(removing)
        except OSError:  # it is gone already, or the disk is broken
            removing = folder
        shutil.rmtree(removing, ignore_errors=True)

    def run_ids(self) -> set[str]:
        """The runs of all pools of which there is a folder, whatever is in it."""
        with contextlib.suppress(FileNotFoundError):
            return {folder.name.rpartition("-")[0] for folder in self._root.iterdir()}
        return set()

    def __iter__(self) -> Iterator[tuple[Path, RunRecord]]:
        """(folder, record) of each launch of this pool that has not been finalised, oldest first."""
        if not self._root.exists():
            return
        for folder in sorted(self._root.iterdir(), key=lambda path: path.name.rpartition("-")[2]):
            try:
                record: RunRecord = build(RunRecord, json.loads((folder / "record.json").read_text()))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # nothing that we have made: nothing was launched from it
            if record.pool == self._pool:
                yield folder, record
