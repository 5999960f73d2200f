"""What the outside world can carry out. The scheduler never asks for more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Preemption(str, Enum):
    """Whether jobs that allow it can be stopped to make room."""

    NONE = "none"
    GRACEFUL = "graceful"  # it takes a while: the job is stopping until `JobStopped`
    INSTANT = "instant"  # the job waits again at once


@dataclass(frozen=True)
class Abilities:
    """What the outside world can carry out.

    Attributes:
        preemption: See :class:`Preemption`; ``Preempt`` and ``Move`` need it.
        free_moves: Stopping, starting and moving a job cost next to nothing, so that all can be placed afresh at each
            decision.
        gates: Runs can be prepared behind another (``Launch.behind``, ``OpenGate``).
        cores: The cores of a running job can be changed (``SetCores``).
        shares: The weight of a running job on its device can be changed (``SetShare``).
        finishes: A running job can be asked to end early, with what it has reached (``Finish``).
    """

    preemption: Preemption = Preemption.NONE
    free_moves: bool = False
    gates: bool = False
    cores: bool = False
    shares: bool = False
    finishes: bool = False


NOTHING_SPECIAL = Abilities()
EVERYTHING = Abilities(Preemption.INSTANT, gates=True, cores=True, shares=True)
