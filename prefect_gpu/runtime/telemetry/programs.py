"""The programs that compute on a GPU of this machine, as its driver lists them, and which runs they belong to."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pynvml

from prefect_gpu.runtime.telemetry import nvml, nvml_words
from prefect_gpu.training.protocol import ENV_RUN_ID
from prefect_gpu.units import format_bytes

_RUN = f"{ENV_RUN_ID}=".encode()


@dataclass(frozen=True)
class Program:
    """A process that computes on a GPU.

    Attributes:
        pid: Its number, as the driver has it.
        memory_bytes: What it has of the GPU's memory; None where the driver does not tell.
        name: Its program, as the kernel has it; empty if this machine does not show it, as from within a container.
        user: Whose it is; empty if nobody can tell.
        run: The run of a pool that started it; empty: none, or it may not be seen.
        certain: Whether its environment could be read: without that nobody knows if a run has started it.
        own: Whether it is this worker's, and no run's: a warm interpreter whose modules open the GPU.
    """

    pid: int
    memory_bytes: int | None
    name: str = ""
    user: str = ""
    run: str = ""
    certain: bool = False
    own: bool = False


def programs_on(device: str) -> list[Program]:
    """The programs that compute on a GPU or a MIG instance, given by its UUID.

    Raises:
        pynvml.NVMLError: The driver does not tell.
    """
    nvml.open_session()
    handle = pynvml.nvmlDeviceGetHandleByUUID(device)
    return [_program(int(one.pid), one.usedGpuMemory) for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def programs_of_each(devices: Sequence[str]) -> dict[str, list[Program]]:
    """The same for some devices. Those are left out of which the driver does not tell.

    Raises:
        pynvml.NVMLError: The driver fails as a whole.
    """
    found = {}
    for device in devices:
        try:
            found[device] = programs_on(device)
        except pynvml.NVMLError as error:
            if error.value in nvml_words.SESSION_LOST:
                raise
    return found


def in_words(programs: Sequence[Program]) -> str:
    """The programs in a few words, those with most memory first.

    Example:
        >>> in_words([Program(42, 3 << 30, "python3", "ann"), Program(43, None)])
        'python3 (pid 42, of ann, 3 GiB) and 1 other program'
    """
    first, *others = sorted(programs, key=lambda one: one.memory_bytes or 0, reverse=True)
    parts = [f"pid {first.pid}"]
    parts += [f"of {first.user}"] if first.user else []
    parts += [f"left by run {first.run}"] if first.run else []
    parts += [format_bytes(first.memory_bytes)] if first.memory_bytes is not None else []
    more = f" and {len(others)} other program{'s' if len(others) > 1 else ''}" if others else ""
    return f"{first.name or 'a program'} ({', '.join(parts)}){more}"


def _program(pid: int, memory_bytes: int | None) -> Program:
    folder = Path("/proc", str(pid))
    name = user = ""
    with suppress(OSError):
        name = (folder / "comm").read_text(errors="replace").strip()
        uid = folder.stat().st_uid
        user = str(uid)
        with suppress(KeyError):
            user = pwd.getpwuid(uid).pw_name
    try:
        environment = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return Program(pid, memory_bytes, name, user)
    run = next((one.removeprefix(_RUN) for one in environment if one.startswith(_RUN)), b"")
    return Program(pid, memory_bytes, name, user, os.fsdecode(run), certain=True, own=not run and _is_ours(pid))


def _is_ours(pid: int) -> bool:
    """Whether a process is this one, or descends from it."""
    while pid > 1 and pid != os.getpid():
        try:
            # The name in parentheses may hold spaces: the fields are counted after it.
            pid = int(Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return pid == os.getpid()
