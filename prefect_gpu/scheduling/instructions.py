"""What the scheduler asks the outside world to do. Each carries a ``reason`` for people."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_gpu.scheduling.cluster import Placement


@dataclass(frozen=True)
class Launch:
    """Start the job there, now. Until ``JobEnded`` or ``LaunchFailed`` the placement is taken."""

    job: str
    placement: Placement
    reason: str


@dataclass(frozen=True)
class Hold:
    """The job waits. Sent when the *kind* of reason changes, not at each event.

    Attributes:
        code: ``devices``, ``memory``, ``reserved``, ``limit``, ``paused``, ``draining``, ``due`` or ``never``:
            the last says that no node of this worker can ever hold the job.
            ``memory`` is for a run that would share: there is company for it, but not enough memory left.
    """

    job: str
    code: str
    reason: str


Instruction = Launch | Hold
