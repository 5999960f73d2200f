"""What must outlive the worker: one small file for each launched run, written before anything is launched.

A new worker finds here every run that the old one may have started: which process, which devices, which token. That
worker may be of another version, older or newer, and there may have been a power loss in between.

===============  ==================================================================================================
``record.json``  replaced in one step whenever something changes; its newest state may be lost with the power
``first.json``   the same as it was at first, which is on the disk before anything is launched
===============  ==================================================================================================

A version reads the records of the one before and of the one after: fields that it does not know are ignored, and those
that are not there have their defaults. Version 1 took a record with a field of no such name for none at all, so what is
newer than that is written below ``known``, which it keeps.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.codec import fields_of, plain
from prefect_gpu.scheduling.model.jobs import Request

RECORD, FIRST = "record.json", "first.json"
VERSION = 2
_LEAST_VERSION = 1  # of a worker that can read what we write
_SINCE_1 = "since_version_1"
_NEWER_OF_REQUEST = ("max_workers", "batch_sizes", "wants", "time_limit_s", "deadline_at", "promise")  # in there
_OURS = (RECORD, FIRST, supervisor.CLAIM, supervisor.PROCESS)
UNKNOWN_PLACE = Placement("", (), ())


@dataclass
class RunRecord:
    """One launch of one run.

    Attributes:
        run_id: The flow run's id.
        token: What the run shows on the channel; made for this launch alone.
        session: The process that the token is bound to, once it has connected.
        known: What was known at submission (flow, deployment, parameters, ...), for the history; and ``clock``, by
            which ``times`` are told: see :meth:`.Clock.identity`.
        times: The worker's time of ``submitted``, ``granted``, ``launched`` and of each phase entered.
        attempt: 1 for the first launch of the flow run.
        gated: Whether it was launched behind another run, and so waits at its gate until that is opened.
        behind: The run that it waits for; None once its gate is open.
        weight: Its share of its devices, 1 if it gives way to nobody.
        speeds: Of an elastic run, what it did on each number of devices, in this launch and those before; see
            :class:`~prefect_gpu.estimation.throughput.speeds.Measured`.
        batch_size: Samples of the batch that the pool has chosen for this launch; None: the run is not asked.
        kind: Of its devices. A later worker may not have them, or others of the same names. None: unknown, or none.
        virtual: Whether these are virtual ones; None: unknown.
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
    batch_size: int | None = None
    kind: str | None = None
    virtual: bool | None = None
    known: dict[str, Any] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)


_FIELDS_OF_VERSION_1 = """
    run_id name pool queue token request placement attempt session warm cancelled gated behind weight leaving speeds
    known times progress
""".split()  # noqa: SIM905


class RecordStore:
    """The records of one pool, each in a folder of its own that also holds the driver's files and the output.

    A folder appears and disappears in one step, whenever the worker is killed: it is made, and taken apart, aside.
    """

    def __init__(self, state_dir: Path, pool: str, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("prefect_gpu.records")
        self._root = state_dir / "runs"
        self._aside = state_dir / "unfinished" / pool
        self._pool = pool

    def clean_up(self) -> None:
        """Remove what a worker that was killed had not yet made, or not yet removed."""
        shutil.rmtree(self._aside, ignore_errors=True)

    def create(self, record: RunRecord) -> Path:
        """Make the folder of a launch and write its record. It outlives this process, and once :meth:`sync` has
        returned, a power loss, too.
        """
        name = f"{record.run_id}-{time.time_ns():x}"
        making, folder = self._aside / name, self._root / name
        self._root.mkdir(parents=True, exist_ok=True)
        making.mkdir(parents=True, mode=0o700)
        try:
            self.write(making, record)
            os.link(making / RECORD, making / FIRST)
            making.rename(folder)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        return folder

    def sync(self, folder: Path) -> None:
        """Bring a new folder to the disk. It may take as long as the disk does.

        Raises:
            OSError: It could not be written.
        """
        with open(folder / FIRST, "rb") as file:
            os.fsync(file.fileno())
        supervisor.sync_folder(str(folder))
        supervisor.sync_folder(str(self._root))

    def write(self, folder: Path, record: RunRecord) -> None:
        """Replace the record in one step, so that a reader sees the old one or the new one and never half of one."""
        temporary = folder / f"{RECORD}.tmp"
        temporary.write_text(json.dumps(_as_written(record), default=plain))
        os.chmod(temporary, 0o600)  # it holds the token
        temporary.replace(folder / RECORD)

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
        for folder in self._folders():
            record, _ = self._read(folder)
            if record is not None and record.pool == self._pool:
                yield folder, record

    def damaged(self) -> Iterator[tuple[Path, RunRecord]]:
        """(folder, stand-in) of each launch whose record cannot be read, and that may be of this pool.

        The stand-in has what could be read of the record, field by field. If that is not the placement, it has
        :data:`UNKNOWN_PLACE`, and without a token, it has an empty one.
        """
        for folder in self._folders():
            record, why = self._read(folder)
            if record is None and any((folder / name).exists() for name in _OURS):
                found = _salvage(folder, self._pool)
                if found.pool == self._pool:
                    self._logger.error("The record of run %s cannot be read: %s", found.name, why)
                    yield folder, found

    def _folders(self) -> list[Path]:
        if not self._root.exists():
            return []
        return sorted(self._root.iterdir(), key=lambda path: path.name.rpartition("-")[2])

    def _read(self, folder: Path) -> tuple[RunRecord | None, str]:
        """The record, or why there is none."""
        why = []
        for name in (RECORD, FIRST):
            try:
                record: RunRecord = files.build(RunRecord, _fields_in(folder / name))
            except (FileNotFoundError, NotADirectoryError):
                why.append(f"{folder / name} is gone")
                continue
            except files.UnreadableError as error:
                why.append(f"{folder / name}: {error}")
                continue
            if why:
                self._logger.error("The record of run %s is taken as it was at its launch: %s.", record.name, why[0])
            return record, ""
        return None, "; ".join(why)


def _as_written(record: RunRecord) -> dict[str, Any]:
    """A record's fields, those that version 1 does not have below ``known``."""
    written = fields_of(record)
    newer = {name: written.pop(name) for name in list(written) if name not in _FIELDS_OF_VERSION_1}
    newer = {name: value for name, value in newer.items() if value is not None}
    written["request"], usual = fields_of(record.request), Request()
    for name in _NEWER_OF_REQUEST:
        value = written["request"].pop(name)
        if value != getattr(usual, name):
            newer[name] = value
    own = {"version": VERSION, "least": _LEAST_VERSION, **newer}
    return {**written, "known": {**record.known, _SINCE_1: own}}


def _fields_in(path: Path, *, whatever: bool = False) -> dict[str, Any]:
    """The fields that a record was written with.

    Args:
        whatever: Also if a version wrote it that is too new for us.

    Raises:
        UnreadableError: It is no record, or not for us.
    """
    written = files.load(path)
    if not isinstance(written, dict):
        raise files.UnreadableError("it is no JSON object")
    known = written.get("known")
    newer = known.pop(_SINCE_1, {}) if isinstance(known, dict) else {}
    if not isinstance(newer, dict):
        raise files.UnreadableError(f"known.{_SINCE_1} is no JSON object")
    version, least = newer.pop("version", 1), newer.pop("least", 1)
    if not whatever and (not isinstance(least, int) or least > VERSION):
        raise files.UnreadableError(f"version {version} wrote it for versions from {least} on; this one is {VERSION}")
    if isinstance(request := written.get("request"), dict):
        written["request"] = request | {name: newer.pop(name) for name in _NEWER_OF_REQUEST if name in newer}
    return {**written, **newer}


def _salvage(folder: Path, pool: str) -> RunRecord:
    """What can be read of a record, field by field."""
    run_id, hints = folder.name.rpartition("-")[0], get_type_hints(RunRecord)
    found = fields_of(RunRecord(run_id, run_id, pool, "", "", Request(), UNKNOWN_PLACE))
    for name in (FIRST, RECORD):
        with contextlib.suppress(OSError, files.UnreadableError):
            for field_name, value in _fields_in(folder / name, whatever=True).items():
                if field_name in hints:
                    with contextlib.suppress(files.UnreadableError):
                        found[field_name] = files.build(hints[field_name], value)
    found["run_id"] = run_id
    return RunRecord(**found)
