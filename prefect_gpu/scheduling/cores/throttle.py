"""Slows CPU flows down that slow training down: CODA's contention eliminator (§V.D), and ours by step rates.

CODA goes by memory bandwidth. Few nodes can measure it, but whoever trains says how fast it is.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from prefect_gpu.scheduling.cores.ledger import flows_on, forget, give_back, jobs_on, resize, take
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.reaction import Reaction

BANDWIDTH_LIMIT = 0.75
"""Part of a node's memory bandwidth from which on contention is suspected."""

UTILISATION_DROP = 0.05
"""By how much a GPU's utilisation must fall to count as a drop; the paper gives no number."""

_TAKER = "memory bandwidth"

DROP = 0.1
"""Part of its step rate that a run must have lost before anybody is slowed down for it."""

LEAST_WEIGHT = 1.0 / 16
"""Part of the time for which a CPU flow computes at the least."""

PATIENCE_S = 60.0
"""After so long without a loss a flow gets some of its share back, to see; twice as long after each time in vain."""

_NOW, _USUAL = 3, 9  # reports of which the median is the rate now, and the usual one
_SOURCE = "relief"


@dataclass(frozen=True)
class CpuJob:
    """A CPU job on the node.

    Attributes:
        cores: Cores that it has.
        full_cores: Cores that it had before it was throttled.
        use: Part of the node's memory bandwidth that it uses.
    """

    id: str
    cores: int
    full_cores: int
    use: float


def throttle(
    pressure: float,
    cpu_jobs: Sequence[CpuJob],
    *,
    disturbed: bool,
    training: bool = True,
) -> dict[str, int]:
    """How many cores CPU jobs are to have now, by job; those that keep what they have are left out.

    Under contention the cores of the hungriest CPU jobs are halved, and their bandwidth with them, job by job, until
    the node should be back under the limit. Once contention is over, throttled jobs get back all that they had, the
    least hungry first, as far as the node should stay under the limit; without training jobs, in any case.

    Args:
        pressure: Part of the node's memory bandwidth that is in use.
        cpu_jobs: The CPU jobs on the node.
        disturbed: Whether the utilisation of a training job there has dropped.
        training: Whether there is one.

    Returns:
        In the order of the decision. Cores that are given back may be in use by now: give as many as are free.
    """
    cores: dict[str, int] = {}
    if pressure >= BANDWIDTH_LIMIT and disturbed:
        for job in sorted(cpu_jobs, key=lambda job: -job.use):
            if pressure < BANDWIDTH_LIMIT or job.use == 0:
                break
            if job.cores > 1:
                cores[job.id] = job.cores // 2
                pressure -= job.use * (1 - cores[job.id] / job.cores)
        return cores
    unthrottled = ((job, job.use * job.full_cores / job.cores) for job in cpu_jobs)
    for job, full in sorted(unthrottled, key=lambda pair: pair[1]):
        if job.cores == job.full_cores or (training and pressure + full - job.use >= BANDWIDTH_LIMIT):
            continue
        cores[job.id] = job.full_cores
        pressure += full - job.use
    return cores


class ThrottleByBandwidth(Reaction):
    """Halves the cores of CPU jobs that take the memory bandwidth that training on their node needs.

    It happens when 75 % of a node's memory bandwidth is in use and the GPU utilisation of a training job there is lower
    than it was, with as many cores, while there was bandwidth to spare (a job that has never been seen then counts as
    disturbed). When there is enough again, the CPU jobs get back what they had, as far as cores are free. Other users
    of the bandwidth are left alone.

    Which CPU job uses how much comes with the measurement; if it does not, all are taken to use as much per core.
    Without measurements, or in a world that cannot change cores, nothing happens.
    """

    def __init__(self) -> None:
        self._pressure: dict[str, float] = {}  # of nodes
        self._use_by_job: dict[str, dict[str, float]] = {}  # of nodes where nothing was changed since it was measured
        self._now: dict[str, float] = {}  # utilisation of training jobs
        self._usual: dict[str, tuple[str, int, float]] = {}  # the same undisturbed, where and with how many cores

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See the class. The allocation has to look again when cores have become free."""
        match event:
            case ev.UtilisationMeasured(job_id, utilisation):
                job = decision.state.running[job_id]
                self._now[job_id] = utilisation
                self._learn(job, utilisation)
                return job.placement is not None and self._look(job.placement.node, decision)
            case ev.PressureMeasured(node, fraction, by_job):
                self._pressure[node], self._use_by_job[node] = fraction, dict(by_job)
                return self._look(node, decision)
            case ev.JobEnded(job_id) | ev.JobStopped(job_id) | ev.LaunchFailed(job_id):
                self._now.pop(job_id, None)
                self._usual.pop(job_id, None)
        return False

    def _learn(self, job: Job, utilisation: float) -> None:
        placement = job.placement
        if placement is None or self._pressure.get(placement.node, 1.0) >= BANDWIDTH_LIMIT:
            return
        here = (placement.node, len(placement.cpus))
        usual = self._usual.get(job.id)
        # The highest: the news that bandwidth is short may come later than that of what it does to the run.
        highest = max(utilisation, usual[2]) if usual is not None and usual[:2] == here else utilisation
        self._usual[job.id] = (*here, highest)

    def _look(self, node: str, decision: Decision) -> bool:
        use_by_job = self._use_by_job.get(node)
        if use_by_job is None or not decision.abilities.cores:
            return False
        pressure = self._pressure[node]
        running = decision.state.running
        throttled = any(_TAKER in running[name].cores_before for name in use_by_job or running if name in running)
        if pressure < BANDWIDTH_LIMIT and not throttled:
            return False
        training = [job for job in jobs_on(node, decision.state) if job.request.total_gpus and job.id in self._now]
        flows = {job.id: len(job.placement.cpus) for job in flows_on(node, decision.state) if job.placement}
        if not use_by_job:
            use_by_job = {name: pressure * cores / (sum(flows.values()) or 1) for name, cores in flows.items()}
        full = {name: running[name].cores_before.get(_TAKER, 0) for name in flows}
        cpu_jobs = [CpuJob(name, n, max(n, full[name]), use_by_job.get(name, 0.0)) for name, n in flows.items() if n]
        disturbed = any(map(self._disturbed, training))
        changes = throttle(pressure, cpu_jobs, disturbed=disturbed, training=bool(training))
        if changes:
            del self._use_by_job[node]  # it will be another when it is measured again
        freed = [_set(running[name], cores, decision) for name, cores in changes.items()]
        return any(freed)

    def _disturbed(self, job: Job) -> bool:
        """Whether its utilisation has dropped; a job that was never seen undisturbed counts as disturbed."""
        assert job.placement is not None
        usual, here = self._usual.get(job.id), (job.placement.node, len(job.placement.cpus))
        return usual is None or usual[:2] != here or usual[2] - self._now[job.id] >= UTILISATION_DROP


def _set(job: Job, cores: int, decision: Decision) -> bool:
    placement = job.placement
    assert placement is not None
    if job.status not in (Status.TRAINING, Status.LAUNCHING, Status.PREPARING):
        return False
    if cores < len(placement.cpus):
        reason = f"training on {placement.node} needs memory bandwidth that it uses"
        return take(job, placement.cpus[:cores], _TAKER, decision, reason)
    give_back(job, _TAKER, decision, f"{placement.node} has memory bandwidth to spare again")
    return False


@dataclass
class _Pace:
    """A training run's step rates with the cores that it has.

    Attributes:
        reports: Since anything changed on its node; the first is left out: a part of its time lies before that.
        usual: (cores, step rate) while no CPU flow ran on its node.
    """

    cores: int = 0
    reports: deque[float] = field(default_factory=lambda: deque(maxlen=_USUAL))
    settled: bool = False
    usual: tuple[int, float] | None = None

    def restart(self) -> None:
        self.reports.clear()
        self.settled = False

    def loss(self) -> float | None:
        """Part of the usual rate that is missing now; None: unknown."""
        if self.usual is None or self.cores < self.usual[0] or len(self.reports) < _NOW:
            return None
        return 1.0 - statistics.median(list(self.reports)[-_NOW:]) / self.usual[1]


@dataclass
class _Case:
    """What is done for training on one node.

    Attributes:
        first: The loss with which it began.
        try_at, wait_s: When flows get some of their share back to see what happens, and how long they wait for that.
        trying: Whether they have got some since they were last slowed down.
    """

    first: float
    try_at: float
    wait_s: float = PATIENCE_S
    trying: bool = False


class ThrottleByStepRate(Reaction):
    """Slows CPU flows down while training beside them has lost a tenth of its step rate or more.

    First their cores are halved, as CODA does; a flow with one core gets a smaller part of the time, a sixteenth at the
    least, by as much as should bring the loss under a sixth of what it was. The flow that computes most comes first.
    They get it back, step by step, when training did well for a minute, and at once when it has ended. If all of that
    did not bring back half of the loss, they were not the cause: they get everything back, and the rate is the usual
    one from then on.

    Only runs that trained while no CPU flow was there are known well enough; runs that share their devices, or that
    give way to others, are not. On nodes where nobody says how fast it trains, the eliminator goes by bandwidth.

    Args:
        otherwise: The eliminator.
    """

    def __init__(self, otherwise: Reaction) -> None:
        self._otherwise = otherwise
        self._paces: dict[str, _Pace] = {}
        self._cases: dict[str, _Case] = {}

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See the class. The allocation has to look again when cores have become free."""
        match event:
            case ev.SpeedMeasured(job_id, speed):
                self._note(decision.state.running[job_id], speed, decision)
                return False
            case ev.UtilisationMeasured(job_id) if job_id in self._paces:
                return False
            case ev.PressureMeasured(node, _, by_job) if node in self._cases or self._known(node, decision):
                return self._look(node, dict(by_job), decision)
            case ev.JobEnded(job_id) | ev.JobStopped(job_id) | ev.LaunchFailed(job_id):
                self._paces.pop(job_id, None)
                for node in [node for node in self._cases if not self._known(node, decision)]:
                    self._give_all_back(node, decision)
        return self._otherwise.react(event, decision)

    # -- how fast training is -------------------------------------------------------------------------------------

    def _note(self, job: Job, speed: float, decision: Decision) -> None:
        placement = job.placement
        if placement is None or placement.others or not placement.devices or job.status is not Status.TRAINING:
            return
        pace = self._paces.setdefault(job.id, _Pace())
        alone = all(len(decision.state.occupants(device)) == 1 for device in placement.devices)
        if not alone or job.share < 1.0 or len(placement.cpus) != pace.cores or not speed > 0:
            pace.cores = len(placement.cpus)
            pace.restart()
            return
        if pace.settled:
            pace.reports.append(speed)
        pace.settled = True
        if len(pace.reports) >= _NOW and not flows_on(placement.node, decision.state):
            pace.usual = (pace.cores, statistics.median(pace.reports))

    def _known(self, node: str, decision: Decision) -> list[_Pace]:
        """Of the runs that train on a node."""
        running = decision.state.running
        return [
            pace
            for name, pace in self._paces.items()
            if name in running and running[name].status is Status.TRAINING and _is_on(running[name], node)
        ]

    # -- what is done about it ------------------------------------------------------------------------------------

    def _look(self, node: str, use: dict[str, float], decision: Decision) -> bool:
        paces = self._known(node, decision)
        flows = sorted(flows_on(node, decision.state), key=lambda job: -use.get(job.id, 0.0))
        if not paces or not flows:
            return self._give_all_back(node, decision)
        losses = [loss for loss in (pace.loss() for pace in paces) if loss is not None]
        if not losses or not (decision.abilities.cores and decision.abilities.shares):
            return False
        loss, case = max(losses), self._cases.get(node)
        if case is None:
            if loss < DROP or not any(use.values()):
                return False
            case = self._cases[node] = _Case(loss, decision.now + PATIENCE_S)
        goal = max(0.02, min(0.05, 0.15 * case.first))
        if loss <= goal:
            return decision.now >= case.try_at and self._loosen(node, flows, case, decision)
        tighter = next((job for job in flows if use.get(job.id, 0.0) > 0 and self._can_tighten(job)), None)
        if tighter is not None:
            for pace in paces:
                pace.restart()
            if case.trying:
                case.trying, case.wait_s = False, 2 * case.wait_s
            case.try_at = decision.now + case.wait_s
            return self._tighten(tighter, goal / loss, decision)
        if loss > 0.5 * case.first:
            for pace in paces:
                if pace.reports:
                    pace.usual = (pace.cores, statistics.median(list(pace.reports)[-_NOW:]))
            self._give_all_back(node, decision)
        return False

    def _can_tighten(self, job: Job) -> bool:
        assert job.placement is not None
        return len(job.placement.cpus) > 1 or job.share_asked_by(_SOURCE) > LEAST_WEIGHT

    @staticmethod
    def _tighten(job: Job, by: float, decision: Decision) -> bool:
        assert job.placement is not None
        cpus = job.placement.cpus
        reason = f"training on {job.placement.node} has been slower since this run started"
        if len(cpus) > 1:
            return take(job, cpus[: len(cpus) // 2], _SOURCE, decision, reason)
        weight = job.share_asked_by(_SOURCE)
        decision.ask_share(job, _SOURCE, max(LEAST_WEIGHT, min(weight / 2, weight * by)), reason)
        return False

    def _loosen(self, node: str, flows: list[Job], case: _Case, decision: Decision) -> bool:
        """One flow gets twice what it has."""
        case.trying, case.try_at = True, decision.now + case.wait_s
        reason = f"to test whether training on {node} stays fast"
        for job in reversed(flows):
            assert job.placement is not None
            weight, cores, had = job.share_asked_by(_SOURCE), len(job.placement.cpus), job.cores_before.get(_SOURCE, 0)
            if weight < 1.0:
                decision.ask_share(job, _SOURCE, min(1.0, 2 * weight), reason)
            elif had > cores:
                resize(job, min(had, 2 * cores), decision, reason)
            else:
                continue
            for pace in self._known(node, decision):
                pace.restart()
            return False
        self._close(node, flows)
        return False

    def _give_all_back(self, node: str, decision: Decision) -> bool:
        if node not in self._cases:
            return False
        flows = flows_on(node, decision.state)
        for job in flows:
            reason = f"training on {node} no longer needs what it gave up"
            if job.share_asked_by(_SOURCE) < 1.0:
                decision.ask_share(job, _SOURCE, 1.0, reason)
            give_back(job, _SOURCE, decision, reason)
        self._close(node, flows)
        return False

    def _close(self, node: str, flows: list[Job]) -> None:
        del self._cases[node]
        for job in flows:
            forget(job, _SOURCE)


def _is_on(job: Job, node: str) -> bool:
    return job.placement is not None and not job.placement.others and job.placement.node == node
