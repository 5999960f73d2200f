"""Keeps the memory bandwidth for training: CODA's contention eliminator (§V.D), on plain numbers and as a reaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.cores.ledger import flows_on, give_back, jobs_on, take
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.reaction import Reaction

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

BANDWIDTH_LIMIT = 0.75
"""Part of a node's memory bandwidth from which on contention is suspected."""

UTILISATION_DROP = 0.05
"""By how much a GPU's utilisation must fall to count as a drop; the paper gives no number."""

_TAKER = "memory bandwidth"


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
    (Intel's Memory Bandwidth Allocation, where the paper has it, throttles without taking cores.)

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
                for memory in (self._now, self._usual):
                    memory.pop(job_id, None)  # type: ignore[attr-defined]
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
        freed = False
        for name, cores in changes.items():
            freed |= _set(running[name], cores, decision)
        return freed

    def _disturbed(self, job: Job) -> bool:
        """Whether its utilisation has dropped; a job that was never seen undisturbed counts as disturbed."""
        assert job.placement is not None
        usual = self._usual.get(job.id)
        known = usual is not None and usual[:2] == (job.placement.node, len(job.placement.cpus))
        return usual is None or not known or usual[2] - self._now[job.id] >= UTILISATION_DROP


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
