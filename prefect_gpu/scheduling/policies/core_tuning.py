"""Gives each training run the cores that it can use: CODA's CPU allocation (§V.B), bound to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_gpu.scheduling import events as ev
from prefect_gpu.scheduling.jobs import Job, Status
from prefect_gpu.scheduling.policies.cores import STEP_S, CoreHistory, CoreTuner
from prefect_gpu.scheduling.policies.eliminator import BANDWIDTH_LIMIT
from prefect_gpu.scheduling.policies.free_cores import free_cores
from prefect_gpu.scheduling.policies.reaction import Reaction

if TYPE_CHECKING:
    from prefect_gpu.scheduling.verbs import Desk


@dataclass
class _Search:
    """The search for one run's count of cores.

    Attributes:
        since: From when on the run has had the cores that it has, and trains.
        total, count: The measurements since then.
    """

    tuner: CoreTuner
    owner: str
    category: str | None
    gpus: int
    since: float
    total: float = 0.0
    count: int = 0

    def restart(self, now: float) -> None:
        """The run's cores have changed."""
        self.since, self.total, self.count = now, 0.0, 0


class CoreTuning(Reaction):
    """Tunes the number of cores of running training jobs on the use of their GPUs that is measured.

    A run is first brought to N_start, from what jobs of its owner and category needed. Then each count that the search
    of :class:`.CoreTuner` asks for is measured for a step of 90 s. The search needs the run's utilisation as events;
    without them, without cores that can be handed out, or in a world that cannot change them, nothing happens. A run
    gets only cores that nobody else is bound to: where too few are free it waits with what there are, and gets the rest
    as they become free. What is measured while the node's memory bandwidth is short counts for nothing.

    Only runs on one node are tuned, for those on several need two cores at most (§IV.B).

    Args:
        history: What jobs needed; shared with the allocation that starts them. Its own, empty one if not given.
        step_s: Seconds for which each count is measured.
    """

    def __init__(self, history: CoreHistory | None = None, step_s: float = STEP_S) -> None:
        self.history = history if history is not None else CoreHistory()
        self._step_s = step_s
        self._searches: dict[str, _Search] = {}
        self._short: set[str] = set()  # nodes whose memory bandwidth is short

    def react(self, event: ev.Event, desk: Desk) -> bool:
        """See the class. The allocation has to look again when cores have become free."""
        match event:
            case ev.UtilisationMeasured(job_id, utilisation):
                return desk.abilities.cores and self._measured(desk.state.running[job_id], utilisation, desk)
            case ev.PressureMeasured(node, fraction):
                (self._short.add if fraction >= BANDWIDTH_LIMIT else self._short.discard)(node)
            case ev.JobEnded(job_id):
                search = self._searches.pop(job_id, None)
                if search is not None and search.tuner.asked is None:
                    self.history.finished(search.owner, search.category, search.tuner.best, search.gpus)
            case ev.JobStopped(job_id) | ev.LaunchFailed(job_id):
                self._searches.pop(job_id, None)
        return False

    def _measured(self, job: Job, utilisation: float, desk: Desk) -> bool:
        placement = job.placement
        if placement is None or placement.others or not placement.devices or not placement.cpus:
            return False
        if job.status is not Status.TRAINING or job.behind is not None or not 0 <= utilisation <= 1:
            return False
        cores = len(placement.cpus)
        search = self._searches.get(job.id)
        if search is None:
            search = self._searches[job.id] = self._begin(job, desk)
        elif placement.node in self._short:
            search.restart(desk.now)
        elif cores == search.tuner.asked:
            search.total, search.count = search.total + utilisation, search.count + 1
            if desk.now - search.since >= self._step_s - 1e-6:
                search.tuner.observe(cores, search.total / search.count)
                search.restart(desk.now)
        wanted = search.tuner.asked if search.tuner.asked is not None else search.tuner.best
        return wanted != cores and self._give(job, wanted, search, desk)

    def _begin(self, job: Job, desk: Desk) -> _Search:
        request = job.request
        assert job.placement is not None
        gpus, most = len(job.placement.devices), len(desk.state.nodes[job.placement.node].cpus)
        start = min(most, self.history.start(request.owner, request.category, gpus))
        return _Search(CoreTuner(start, most, 1, gpus), request.owner, request.category, gpus, desk.now)

    def _give(self, job: Job, wanted: int, search: _Search, desk: Desk) -> bool:
        placement = job.placement
        assert placement is not None
        own = placement.cpus
        if wanted < len(own):
            cpus = own[:wanted]
        else:
            cpus = tuple(sorted(own + free_cores(placement.node, wanted - len(own), desk.state, placement.devices)))
        if len(cpus) == len(own):
            return False
        best = search.tuner.best
        if search.tuner.asked is None:
            reason = f"{best} were found to keep its GPUs busiest"
        elif search.tuner.measurements == 0:
            reason = f"so many are known to suit such runs of {search.owner or 'its owner'}"
        else:
            reason = f"to see whether its GPUs are busier than with {best}"
        desk.set_cores(job, cpus, reason)
        search.restart(desk.now)
        return len(cpus) < len(own)
