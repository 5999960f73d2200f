"""Runs that hold each other up too much take turns: the younger pauses until the other one trains no more."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from prefect_gpu.scheduling import events as ev
from prefect_gpu.scheduling.jobs import Status
from prefect_gpu.scheduling.policies.reaction import Reaction

if TYPE_CHECKING:
    from prefect_gpu.scheduling.jobs import Job
    from prefect_gpu.scheduling.policies.apart import Apart
    from prefect_gpu.scheduling.state import State
    from prefect_gpu.scheduling.verbs import Desk

_SOURCE = "separation"


class Separation(Reaction):
    """Teaches which programs stay apart what was measured, and separates those that are together.

    Nothing happens before somebody measures a pair of programs, or remembers one (:class:`SlowdownMeasured` with
    ``beside``, :class:`CompanyLearned`). Of two runs that train on a device and are to stay apart, the one that was
    granted it later pauses: it keeps its memory and its place, and trains on as soon as the other saves or ends, or
    goes back to preparing. That later runs do not meet is the business of the sharing policy.

    Args:
        apart: What is taught; that of the sharing policy.
    """

    def __init__(self, apart: Apart) -> None:
        self._apart = apart
        self._active = False
        self._paused: set[str] = set()

    def react(self, event: ev.Event, desk: Desk) -> bool:
        """See the class."""
        match event:
            case ev.SlowdownMeasured(job_id, slowdown, beside) if beside:
                job = desk.state.running.get(job_id)
                if job is not None:
                    self._active |= self._apart.learn(job.request.kind, beside, slowdown)
            case ev.CompanyLearned(pairs):
                for program, beside, slowdown in pairs:
                    self._active |= self._apart.learn(program, beside, slowdown)
            case ev.JobEnded(job_id) | ev.JobWithdrawn(job_id):
                self._paused.discard(job_id)
            case ev.PhaseEntered():
                pass
            case _:
                return False
        if self._active and desk.abilities.shares:
            self._separate(desk)
        return False

    def after(self, desk: Desk) -> None:
        """Somebody may have been moved, or preempted."""
        if self._paused and desk.abilities.shares:
            self._separate(desk)

    def _separate(self, desk: Desk) -> None:
        state = desk.state
        held_up: dict[str, Job] = {}
        for device in state.shared_devices():
            training = sorted((job for job in state.occupants(device) if _trains(job, state)), key=_age)
            for older, younger in combinations(training, 2):
                if self._apart.are(older.request.kind, younger.request.kind):
                    held_up.setdefault(younger.id, older)
        for job_id, older in held_up.items():
            if job_id not in self._paused:
                self._paused.add(job_id)
                reason = f"it and {older.label} slow each other down too much: it trains on when {older.label} is done"
                desk.ask_share(state.running[job_id], _SOURCE, 0.0, reason)
        for job_id in sorted(self._paused - set(held_up)):
            job = state.running.get(job_id)
            if job is not None:  # else it was stopped: it has its weight when it is back, and is told another one then
                self._paused.discard(job_id)
                desk.ask_share(job, _SOURCE, 1.0, "whoever slowed it down trains no more")


def _trains(job: Job, state: State) -> bool:
    return job.status is Status.TRAINING and job.behind is None


def _age(job: Job) -> tuple[float, str]:
    return (job.granted_at or 0.0, job.id)
