"""Runs that hold each other up too much take turns: the younger pauses until the other one trains no more."""

from __future__ import annotations

from itertools import combinations

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.state.state import State

_SOURCE = "separation"


class TakeTurns(Reaction):
    """Teaches which programs stay apart what was measured, and separates those that are together.

    Nothing happens before somebody measures a pair of programs, or remembers one (:class:`SlowdownMeasured` with
    ``beside``, :class:`CompanyLearned`). Of two runs that train on a device and are to stay apart, the one that was
    granted it later pauses: it keeps its memory and its place, and trains on as soon as the other saves or ends, or
    goes back to preparing. That later runs do not meet is the business of the sharing policy.
    """

    def __init__(self) -> None:
        self._paused: set[str] = set()

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See the class."""
        incompatible = decision.state.learned.incompatible
        match event:
            case ev.SlowdownMeasured(job_id, slowdown, beside) if beside:
                job = decision.state.running.get(job_id)
                if job is not None:
                    incompatible.learn(job.request.kind, beside, slowdown)
            case ev.CompanyLearned(pairs):
                for program, beside, slowdown in pairs:
                    incompatible.learn(program, beside, slowdown)
            case ev.JobEnded(job_id) | ev.JobWithdrawn(job_id):
                self._paused.discard(job_id)
            case ev.PhaseEntered():
                pass
            case _:
                return False
        if incompatible and decision.abilities.shares:
            self._separate(decision)
        return False

    def after(self, decision: Decision) -> None:
        """Somebody may have been moved, or preempted."""
        if self._paused and decision.abilities.shares:
            self._separate(decision)

    def _separate(self, decision: Decision) -> None:
        state = decision.state
        held_up: dict[str, Job] = {}
        for device in state.shared_devices():
            training = sorted((job for job in state.occupants(device) if _trains(job, state)), key=_age)
            for older, younger in combinations(training, 2):
                if state.learned.incompatible.are(older.request.kind, younger.request.kind):
                    held_up.setdefault(younger.id, older)
        for job_id, older in held_up.items():
            if job_id not in self._paused:
                self._paused.add(job_id)
                reason = f"it and {older.label} slow each other down too much; it continues when {older.label} is done"
                decision.ask_share(state.running[job_id], _SOURCE, 0.0, reason)
        for job_id in sorted(self._paused - set(held_up)):
            job = state.running.get(job_id)
            if job is not None:  # else it was stopped: it has its weight when it is back, and is told another one then
                self._paused.discard(job_id)
                decision.ask_share(job, _SOURCE, 1.0, "the run that slowed it down has stopped training")


def _trains(job: Job, state: State) -> bool:
    return job.status is Status.TRAINING and job.behind is None


def _age(job: Job) -> tuple[float, str]:
    return (job.granted_at or 0.0, job.id)
