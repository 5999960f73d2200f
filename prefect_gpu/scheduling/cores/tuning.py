"""Gives each training run the cores that it can use: CODA's CPU allocation (§V.B), bound to the scheduler."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from prefect_gpu.scheduling.cores.ledger import jobs_on, resize
from prefect_gpu.scheduling.cores.search import STEP_S, CoreTuner, KneeTuner
from prefect_gpu.scheduling.cores.throttle import BANDWIDTH_LIMIT
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.reaction import Reaction

REPORTS = 5
"""Reports of its step rate after which a count of cores has been measured."""

LEAST_USE = 0.1
"""Use of its GPUs, 0 to 1, below which it does not tell what more cores bring: NVML measures it in steps of 0.01."""


@dataclass
class _Search:
    """The search for one run's count of cores.

    Attributes:
        since: From when on the run has had the cores that it has, and trains.
        values: What was measured since then. The first step rate is left out: a part of its time lies before that.
        cores: Those that it has had since then.
    """

    tuner: CoreTuner | KneeTuner
    job: Job
    gpus: int
    since: float
    values: list[float] = field(default_factory=list)
    cores: int = 0
    settled: bool = False

    @property
    def by_speed(self) -> bool:
        """Whether it goes by the run's step rate, for want of its devices' use."""
        return isinstance(self.tuner, KneeTuner)

    @property
    def measured(self) -> float:
        """What was measured since then: the median of step rates, the mean of how busy the devices were."""
        return statistics.median(self.values) if self.by_speed else sum(self.values) / len(self.values)

    def restart(self, now: float) -> None:
        """The run's cores have changed, or something else has."""
        self.since, self.values, self.settled = now, [], not self.by_speed


class CoreTuning(Reaction):
    """Tunes the number of cores of running training jobs on how busy their GPUs are, or on how fast they train.

    A run is first brought to N_start, from what jobs of its owner and category needed. Then each count that the search
    asks for is measured. A run gets only cores that nobody else is bound to: where too few are free it waits with what
    there are, and gets the rest as they become free. What is measured while the node's memory bandwidth is short counts
    for nothing.

    - Where the use of the GPUs is measured, that is CODA's search (:class:`.CoreTuner`), in steps of 90 s.
    - Where it is not, or hardly any, the step rate stands for it (:class:`.KneeTuner`). A count has been measured after
      some reports, so that a run of minutes profits too; a run that shares its devices is not measured. The median
      counts.

    Only runs on one node are tuned, for those on several need two cores at most (§IV.B).

    Args:
        step_s: Seconds for which each count is measured at most.
        reports: Reports of the step rate with which it is measured at the latest.
        keeps_asked: Keep to a number of cores that was asked for, unless the run itself and all others on its node may
            be stopped: what is given to one that may not be could not be taken back when it is missed. CODA itself
            tunes all runs, whatever they ask for.
        least_use: No search by the use of the GPUs begins at less. CODA itself begins at any.
    """

    def __init__(
        self,
        step_s: float = STEP_S,
        reports: int = REPORTS,
        *,
        keeps_asked: bool = True,
        least_use: float = LEAST_USE,
    ) -> None:
        self._keeps_asked = keeps_asked
        self._least_use = least_use
        self._step_s = step_s
        self._reports = reports
        self._searches: dict[str, _Search] = {}
        self._short: set[str] = set()  # nodes whose memory bandwidth is short

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See the class. The allocation has to look again when cores have become free."""
        match event:
            case ev.UtilisationMeasured(job_id, value) | ev.SpeedMeasured(job_id, value) if decision.abilities.cores:
                by_speed = isinstance(event, ev.SpeedMeasured)
                if 0 < value < math.inf if by_speed else 0 <= value <= 1:
                    return self._measured(decision.state.running[job_id], value, by_speed, decision)
            case ev.PressureMeasured(node, fraction):
                (self._short.add if fraction >= BANDWIDTH_LIMIT else self._short.discard)(node)
            case ev.JobEnded(job_id) | ev.JobStopped(job_id) | ev.LaunchFailed(job_id):
                search, learned = self._searches.pop(job_id, None), decision.state.learned.cores
                learned.needs.pop(job_id, None)
                if isinstance(event, ev.JobEnded) and search is not None and search.tuner.asked is None:
                    request = search.job.request
                    learned.finished(request.owner, request.category, search.tuner.best, search.gpus)
        return False

    def _measured(self, job: Job, value: float, by_speed: bool, decision: Decision) -> bool:
        placement = job.placement
        if placement is None or not self._tunable(job, decision):
            return False
        cores, gpus = len(placement.cpus), len(placement.devices)
        search = self._searches.get(job.id)
        if not by_speed and value < self._least_use and (search is None or search.by_speed):
            return False
        if search is not None and search.by_speed is not by_speed:
            if by_speed or search.tuner.measurements:
                return False
            search = None
        if search is None:
            start, most = self._range(job, decision)
            tuner = KneeTuner(start, most) if by_speed else CoreTuner(start, most, gpus)
            search = self._searches[job.id] = _Search(tuner, job, gpus, decision.now)
        alone = not by_speed or all(len(decision.state.occupants(device)) == 1 for device in placement.devices)
        if by_speed and cores != search.cores:  # somebody else may have changed them
            search.cores = cores
            search.restart(decision.now)
        if placement.node in self._short or not alone:
            search.restart(decision.now)
            if by_speed:
                return False
        elif cores == search.tuner.asked:
            if search.settled:
                search.values.append(value)
            search.settled = True
            late = decision.now - search.since >= self._step_s - 1e-6
            if search.values and (late or (by_speed and len(search.values) >= self._reports)):
                free = decision.state.free_cores_on(placement.node)
                search.tuner.observe(cores, search.measured, cores + free)
                search.restart(decision.now)
        return self._go_on(job, search, decision)

    def _tunable(self, job: Job, decision: Decision) -> bool:
        placement, state = job.placement, decision.state
        if placement is None or placement.others or not placement.devices or not placement.cpus or job.share < 1.0:
            return False
        node = state.nodes.get(placement.node)
        if node is None or not node.cpus:  # it is out of reach, or its cores are not handed out any more
            return False
        if self._keeps_asked and job.request.cpus is not None:
            all_stop = not state.firm_count or all(one.request.preemptible for one in jobs_on(placement.node, state))
            if not (decision.can_stop(job) and all_stop):
                return False
        return job.status is Status.TRAINING and job.behind is None and placement.node in state.nodes

    def _range(self, job: Job, decision: Decision) -> tuple[int, int]:
        """N_start, and the most cores that there are."""
        request = job.request
        assert job.placement is not None
        most = len(decision.state.nodes[job.placement.node].cpus)
        history = decision.state.learned.cores
        return min(most, history.start(request.owner, request.category, len(job.placement.devices))), most

    def _go_on(self, job: Job, search: _Search, decision: Decision) -> bool:
        assert job.placement is not None
        wanted = search.tuner.asked
        if wanted is None:
            wanted = decision.state.learned.cores.needs[job.id] = search.tuner.best
        return wanted != len(job.placement.cpus) and self._give(job, wanted, search, decision)

    def _give(self, job: Job, wanted: int, search: _Search, decision: Decision) -> bool:
        best = search.tuner.best
        if search.tuner.asked is None:
            why = "it trains no faster with more" if search.by_speed else "its GPUs are busiest then"
            reason = f"{best} suit it best, as {why}"
        elif search.tuner.measurements == 0:
            reason = f"earlier runs of {job.request.owner or 'its owner'} did best with so many"
        else:
            what = "it trains faster" if search.by_speed else "its GPUs are busier"
            reason = f"to test whether {what} than with {best}"
        more = resize(job, wanted, decision, reason)
        if more:
            search.restart(decision.now)
        return more < 0
