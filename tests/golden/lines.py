"""Instructions as lines that stay what they are when the code is renamed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from string import ascii_letters, digits

from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.events import Event
from prefect_gpu.scheduling.model.instructions import (
    Finish,
    Hold,
    Instruction,
    Launch,
    Move,
    OpenGate,
    Preempt,
    SetCores,
    SetShare,
)
from prefect_gpu.scheduling.scheduler import Scheduler

MOST_LINES = 1500
MOST_DECISIONS = 4000
_LETTERS = ascii_letters + digits + "+-"
_OFF = 0.37  # of a unit: sums of round numbers never lie where a number is cut, so that their last digit is no matter


def line(said: Instruction, now: float) -> str | None:
    """One instruction as a line; None for one that changes nothing."""
    match said:
        case Launch(job, placement, _, behind):
            what = f"launch {job} {_where(placement)}{f' behind {behind}' if behind else ''}"
        case Move(job, placement):
            what = f"move {job} {_where(placement)}"
        case Preempt(job):
            what = f"stop {job}"
        case OpenGate(job):
            what = f"open {job}"
        case SetCores(job, cpus):
            what = f"cores {job} {_cores(cpus)}"
        case SetShare(job, weight):
            what = f"share {job} {_cut(weight, 1e6)}"
        case Finish(job):
            what = f"finish {job}"
        case Hold():
            return None
    return f"{_cut(now, 1e3)} {what}"


def _cut(value: float, parts: float) -> int:
    """A number in whole parts of 1."""
    return math.floor(value * parts + _OFF)


def _where(placement: Placement) -> str:
    parts = [
        f"{part.node}[{','.join(part.devices)}]{_cores(part.cpus)}:{part.memory_bytes}{'+' if part.shared else ''}"
        for part in placement.parts
    ]
    return " ".join(parts) + (f" servers {placement.servers}" if placement.servers else "")


def _cores(cpus: Sequence[int]) -> str:
    """Cores as ranges: 0-3.6"""
    runs: list[list[int]] = []
    for core in cpus:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return "(" + ".".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) + ")"


def digest(lines: Sequence[str]) -> str:
    """One short text for all lines."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def letters(lines: Sequence[str]) -> str:
    """One letter for each line."""
    return "".join(_LETTERS[hashlib.sha256(one.encode()).digest()[0] % 64] for one in lines)


class Enough(Exception):
    """So much has been said that no more is kept."""


@contextmanager
def heard() -> Iterator[list[str]]:
    """The lines of everything that any scheduler says meanwhile; the first of them, where that is too much.

    Some profiles stop and start the same jobs for ever in a world that they were not made for: that is cut off, always
    at the same line.
    """
    lines: list[str] = []
    decisions = 0
    real = Scheduler.handle

    def handle(self: Scheduler, event: Event, now: float) -> list[Instruction]:
        nonlocal decisions
        decisions += 1
        said = real(self, event, now)
        lines.extend(text for text in (line(one, now) for one in said) if text is not None)
        if len(lines) >= MOST_LINES or decisions >= MOST_DECISIONS:
            del lines[MOST_LINES:]
            raise Enough
        return said

    Scheduler.handle = handle  # type: ignore[method-assign]
    try:
        yield lines
    except Enough:
        lines.append("and so on")
    finally:
        Scheduler.handle = real  # type: ignore[method-assign]
