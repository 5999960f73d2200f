"""Runs whose loss stands still give way to those beside them that still learn: SpeCon's aim, without moving anybody."""

from __future__ import annotations

from prefect_gpu.phases import within
from prefect_gpu.scheduling.cores.ledger import forget, give_back, take
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.sharing.convergence import Category
from prefect_gpu.scheduling.sharing.plateau import Plateau, interval_of

WEIGHT = 1.0 / 16
"""Share of a converged run beside one that learns: little, but its loss is still seen if it moves again."""

_SOURCE = "demotion"


class Demotion(Reaction):
    """Gives a converged run a small share of its device while another run on the device still learns.

    For runs that ask for it (``Request.converged`` is "yield" or "stop"); nobody else is touched. :class:`.Plateau`
    sorts them into SpeCon's categories. A converged run that trains beside one that does not stand still (or says
    nothing of its loss) has a sixteenth of a share, and one core if it had more for itself alone. It has all of it
    again at once when its loss moves, when nobody beside it learns any more, and when it saves.

    With "stop", a run that has learned, and then stood still for some looks more, is asked to end, wherever it is.
    """

    def __init__(self) -> None:
        self._watches: dict[str, Plateau] = {}
        self._demoted: set[str] = set()
        self._finished: set[str] = set()

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See the class. True if cores have become free."""
        match event:
            case ev.LossReported(job_id, value):
                job = decision.state.running[job_id]
                return job.request.converged in ("yield", "stop") and self._learn(job, value, decision)
            case ev.PhaseEntered(job_id, status):
                if status is not Status.SAVING:
                    self._watches.pop(job_id, None)  # it begins (again)
                return self._review(decision)
            case ev.JobStopped(job_id) | ev.LaunchFailed(job_id):  # it keeps its share until it runs again
                self._watches.pop(job_id, None)
                return self._review(decision)
            case ev.JobEnded(job_id) | ev.JobWithdrawn(job_id):
                self._watches.pop(job_id, None)
                self._demoted.discard(job_id)
                self._finished.discard(job_id)
                return self._review(decision)
        return False

    def after(self, decision: Decision) -> None:
        """Somebody may have been moved, or preempted."""
        self._review(decision)

    def _learn(self, job: Job, value: float, decision: Decision) -> bool:
        if job.status is not Status.TRAINING:
            return False
        watch = self._watches.get(job.id)
        if watch is None:
            watch = self._watches[job.id] = Plateau()
        before = watch.category
        watch.observe(decision.now, value, interval_of(job.estimate.service_s))
        if watch.confirmed and job.request.converged == "stop" and decision.abilities.finishes:
            self._finish(job, decision)
        return watch.category is not before and self._review(decision)

    def _finish(self, job: Job, decision: Decision) -> None:
        if job.id not in self._finished:
            self._finished.add(job.id)
            decision.finish(job, "its loss stands still, and it asked to end in this case")

    def _review(self, decision: Decision) -> bool:
        """Let each watched run have the share that it should have now."""
        if not decision.abilities.shares:
            return False
        freed = False
        for job_id in [*self._watches, *(self._demoted - self._watches.keys())]:
            job = decision.state.running.get(job_id)
            if job is None:
                continue
            learner = self._learner_beside(job, decision) if self._stands_still(job) else None
            if learner is not None and job_id not in self._demoted:
                self._demoted.add(job_id)
                reason = f"its loss stands still, and {learner.label} beside it still learns"
                decision.ask_share(job, _SOURCE, WEIGHT, reason)
                freed |= self._take_cores(job, decision, reason)
            elif learner is None and job_id in self._demoted:
                self._demoted.discard(job_id)
                reason = self._why_again(job)
                decision.ask_share(job, _SOURCE, 1.0, reason)
                give_back(job, _SOURCE, decision, reason)
                forget(job, _SOURCE)
        return freed

    def _stands_still(self, job: Job) -> bool:
        watch = self._watches.get(job.id)
        return job.status is Status.TRAINING and watch is not None and watch.category is Category.CONVERGED

    def _why_again(self, job: Job) -> str:
        if job.status is not Status.TRAINING:
            return f"it is {within(job.status.value)}"
        return "no run beside it learns any more" if self._stands_still(job) else "its loss moves again"

    def _learner_beside(self, job: Job, decision: Decision) -> Job | None:
        """A run that trains on the same device, and does not stand still as far as anybody knows."""
        if job.placement is None:
            return None
        for device in job.placement.all_devices:
            for other in decision.state.occupants(device):
                trains = other.status is Status.TRAINING and other.behind is None and other.share > 0.0
                if other is not job and trains and not self._stands_still(other):
                    return other
        return None

    def _take_cores(self, job: Job, decision: Decision, reason: str) -> bool:
        """Leave it one core, as far as it has others for itself alone: only those are of use to anybody else."""
        placement = job.placement
        if not decision.abilities.cores or placement is None or placement.others:
            return False
        load = decision.state.core_load(placement.node)
        kept = [core for core in placement.cpus if load[core] > 1] or placement.cpus[:1]
        return take(job, kept, _SOURCE, decision, reason)
