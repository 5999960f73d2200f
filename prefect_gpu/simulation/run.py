"""One job in a simulated world: its process as it really is, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.simulation.model import JobModel


@dataclass(slots=True)
class Outcome:
    """One job. Times are seconds on the simulated clock.

    Attributes:
        starts: How often it was launched: 1 if it was never stopped.
        trained_s: Seconds for which it trained, at whatever speed.
    """

    job: str
    submit_s: float
    gpus: int
    first_start_s: float | None = None
    end_s: float | None = None
    starts: int = 0
    trained_s: float = 0.0

    @property
    def jct_s(self) -> float:
        """Job completion time: from submission to the end of its process."""
        assert self.end_s is not None
        return self.end_s - self.submit_s


@dataclass(eq=False)
class Run:
    """One job's process, as it really is.

    Attributes:
        done_s: Seconds of service that it has had, as of ``since``.
        saved_s: The same, as of its last checkpoint.
        speed: Seconds of service per second, now; 0 while it does not train.
        weight: Its share of its devices beside others (SpeCon's demotion).
        gate_open: Whether it may train as soon as it is prepared.
        units: How fast an elastic gang was when it last began to train: the scheduler is told its service and progress
            in seconds at that speed, as a live run is.
        turn: Counts changes, so that what was planned before the last change is known to be void.
    """

    model: JobModel
    outcome: Outcome
    placement: Placement | None = None
    status: Status = Status.WAITING
    done_s: float = 0.0
    saved_s: float = 0.0
    since: float = 0.0
    speed: float = 0.0
    weight: float = 1.0
    units: float = 1.0
    gate_open: bool = True
    prepared: bool = False
    turn: int = 0
    failed: bool = False
    next_place: Placement | None = None
    reported: tuple[float, Placement | None] = (-1.0, None)
    reported_at: float = 0.0
    steady: bool = False
