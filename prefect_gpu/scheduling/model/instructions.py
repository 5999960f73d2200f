"""What the scheduler asks the outside world to do. Each carries a ``reason`` for people.

The books change as an instruction is given; what takes time (a launch, a checkpoint) is the outside world's to carry
out in order: a run is launched onto a device only when the process that had it before is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_gpu.scheduling.model.cluster import Placement


@dataclass(frozen=True)
class Launch:
    """Start the job there, now. Until ``JobEnded``, ``JobStopped`` or ``LaunchFailed`` the placement is taken.

    Attributes:
        behind: The job that still trains on these devices: prepare, and wait for ``OpenGate`` before training.
    """

    job: str
    placement: Placement
    reason: str
    behind: str | None = None


@dataclass(frozen=True)
class Hold:
    """The job waits. Sent when the *kind* of reason changes, not at each event.

    Attributes:
        code: ``devices``, ``cores``, ``memory``, ``reserved``, ``limit``, ``paused``, ``draining``, ``due``, ``order``,
            ``round``, ``contention``, ``nodes`` or ``never``: the last says that no node of this worker can ever hold
            the job, ``nodes`` that none is known yet, ``order`` that others come first. ``cores`` is for a run without
            devices: no node has so many free. ``memory`` is for a run that would share: there is company for it, but
            not enough memory left. ``round``: jobs are started in rounds. ``contention``: there is room for it, where
            it or others would be slowed down too much. ``room`` is the controller's own: it could not write the launch
            down.
    """

    job: str
    code: str
    reason: str


@dataclass(frozen=True)
class Preempt:
    """Save the job's progress and stop it, to make room for others. ``JobStopped`` is expected."""

    job: str
    reason: str


@dataclass(frozen=True)
class Move:
    """Save the job's progress, stop it, and carry on at the new placement; perhaps with more or fewer devices."""

    job: str
    placement: Placement
    reason: str


@dataclass(frozen=True)
class OpenGate:
    """The predecessor has stopped training: the prepared job may train."""

    job: str
    reason: str


@dataclass(frozen=True)
class SetCores:
    """Bind the running job to these cores of its node from now on (CODA)."""

    job: str
    cpus: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class SetShare:
    """Give the running job this weight on its device; 1 is a full share (convergence, after SpeCon), 0 lets it pause.

    A run that pauses keeps its memory and waits between two steps for another weight. A job keeps its weight when it is
    moved, or stopped and started again, until it ends or is given another one.
    """

    job: str
    weight: float
    reason: str


@dataclass(frozen=True)
class Finish:
    """Let the running job end its training early, save what it has reached, and complete."""

    job: str
    reason: str


@dataclass(frozen=True)
class Promise:
    """The job's deadline is promised, with this probability; said once, before it waits."""

    job: str
    probability: float
    reason: str


@dataclass(frozen=True)
class Refuse:
    """The job's deadline cannot be promised, and so it does not wait: it is not ours to start.

    Attributes:
        earliest: The earliest date that could be promised instead, on the clock of events; None: none can.
    """

    job: str
    earliest: float | None
    reason: str


@dataclass(frozen=True)
class AtRisk:
    """A promise may be broken, as things stand; said once."""

    job: str
    reason: str


@dataclass(frozen=True)
class Expire:
    """The job has held its devices for as long as it may: save its progress and end it. ``JobEnded`` is expected."""

    job: str
    reason: str


Instruction = (
    Launch | Hold | Preempt | Move | OpenGate | SetCores | SetShare | Finish | Promise | Refuse | AtRisk | Expire
)
