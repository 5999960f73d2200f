"""A simulated cluster: a virtual clock, runs that progress, and the same scheduler that runs live.

The world carries out instructions as a cluster would: a stop takes the time of a checkpoint, a run is launched onto a
device only when the process before it is gone, and the scheduler learns only what a cluster could tell it.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Node, Placement
from prefect_gpu.scheduling.model.instructions import (
    AtRisk,
    Expire,
    Hold,
    Instruction,
    Launch,
    Move,
    OpenGate,
    Preempt,
    Promise,
    Refuse,
    SetCores,
    SetShare,
)
from prefect_gpu.scheduling.model.jobs import Estimate, Status
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.physics import Physics, Undisturbed
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.run import Run

ALL = Abilities(Preemption.GRACEFUL, gates=True, cores=True, shares=True)


class World:
    """Runs a workload through a scheduler.

    Args:
        nodes: The cluster.
        jobs: The workload, in order of submission; taken one by one, so it may be long.
        profile: Who decides.
        physics: What slows runs down.
        abilities: What this world can carry out.
        heartbeat_s: The scheduler learns of a run's phases and end only at the next multiple of this (Liquid §6.3);
            0: at once.
        report_s: How often runs report progress, loss and use of their devices, and nodes the use of their memory
            bandwidth if that has changed; 0: never.
        steady_report_s: A run without losses whose speed and placement were the same at the last two reports only
            reports so often: it has nothing to say, and large clusters are simulated faster. 0: as often as others.
        keep_timeline: Remember who trained on which device when.
        progress: Called with the number of jobs that have ended, now and then.
        estimate: What the scheduler is told of a job, asked at its submission; None: ``JobModel.estimate``.
        changes: The nodes as they are from later moments on: (seconds, all nodes). A node that is gone takes its runs
            with it: they are submitted again, with the progress of their last checkpoint.
        finished: Told of each job that has ended. It gives other jobs, not yet ended, of which the scheduler is to be
            told something else from now on: (name, estimate).
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        jobs: Iterable[JobModel],
        profile: Profile | str,
        *,
        physics: Physics | None = None,
        abilities: Abilities = ALL,
        heartbeat_s: float = 0.0,
        report_s: float = 0.0,
        steady_report_s: float = 0.0,
        keep_timeline: bool = False,
        progress: Callable[[int], None] | None = None,
        estimate: Callable[[JobModel], Estimate] | None = None,
        finished: Callable[[JobModel], Iterable[tuple[str, Estimate]]] | None = None,
        changes: Iterable[tuple[float, Iterable[Node]]] = (),
    ) -> None:
        self.nodes = tuple(nodes)
        self.scheduler = Scheduler(profile, abilities)
        self.now = 0.0
        self.runs: dict[str, Run] = {}  # not yet ended
        self.active: dict[str, Run] = {}  # with a process
        self.on_node: dict[str, dict[str, Run]] = {node.id: {} for node in self.nodes}
        self.on_device: dict[str, dict[str, Run]] = {d.id: {} for node in self.nodes for d in node.devices}
        self.results = Results(sum(len(node.devices) for node in self.nodes), keep_timeline=keep_timeline)
        self._physics = physics or Undisturbed()
        self._plain = isinstance(self._physics, Undisturbed)
        self._instant = abilities.preemption is Preemption.INSTANT
        self._heartbeat_s = heartbeat_s
        self._report_s = report_s
        self._steady_report_s = steady_report_s
        self._changed_nodes: dict[str, None] = {}  # a dict for its order
        self._progress = progress
        self._estimate = estimate
        self._finished = finished
        self._jobs: Iterator[JobModel] = iter(jobs)
        self._next_job = next(self._jobs, None)
        self._plans: list[tuple[float, int, Callable[[Run], None], Run | None, int]] = []
        self._count = 0
        self._news: list[ev.Event] = []
        self._standby: list[Run] = []
        self._timer_at = math.inf
        for moment, changed in changes:
            self._plan(moment, lambda _, nodes=tuple(changed): self._change_nodes(nodes), None)  # type: ignore[misc]

    # -- the clock ------------------------------------------------------------------------------------------------

    def run(self) -> Results:
        """Let time pass until every job has ended, or nothing can happen any more."""
        began = time.perf_counter()
        self._tell(ev.NodesChanged(self.nodes))
        self._decide()
        if self._report_s:
            self._plan(self._report_s, self._everyone_reports, None)
        while True:
            moment = self._next_moment()
            if moment == math.inf or (not self.runs and self._next_job is None):
                break
            self.now = moment
            self._happen(moment)
            if self._news:
                self._decide()
        self.results.wall_s = time.perf_counter() - began
        self.results.end_s = self.now
        self.results.unfinished = sorted(self.runs)
        return self.results

    def _next_moment(self) -> float:
        moment = self._plans[0][0] if self._plans else math.inf
        if self._next_job is not None and self._next_job.submit_s < moment:
            moment = self._next_job.submit_s
        return min(moment, self._timer_at)

    def _happen(self, moment: float) -> None:
        """Everything that happens at this moment."""
        while self._next_job is not None and self._next_job.submit_s <= moment:
            self._submit(self._next_job)
            self._next_job = next(self._jobs, None)
        plans = self._plans
        while plans and plans[0][0] <= moment:
            _, _, action, run, turn = heapq.heappop(plans)
            if run is None or run.turn == turn:
                action(run)  # type: ignore[arg-type]
        if self._timer_at <= moment:
            self._timer_at = math.inf
            self._tell(ev.TimePassed())

    def _plan(self, moment: float, action: Callable[[Run], None], run: Run | None) -> None:
        self._count += 1
        heapq.heappush(self._plans, (moment, self._count, action, run, run.turn if run else 0))

    # -- talking with the scheduler -------------------------------------------------------------------------------

    def _tell(self, event: ev.Event) -> None:
        self._news.append(event)

    def _decide(self) -> None:
        while self._news:
            news, self._news = self._news, []
            event = news[0] if len(news) == 1 else ev.Together(tuple(news))
            began = time.perf_counter()
            instructions = self.scheduler.handle(event, self.now)
            self.results.decided(time.perf_counter() - began)
            for instruction in instructions:
                self._carry_out(instruction)
        due = self.scheduler.next_due()
        self._timer_at = math.inf if due is None else max(due, self.now)
        if due is not None and due <= self.now:
            self._timer_at = math.nextafter(self.now, math.inf)

    def _learn(self, event: ev.Event) -> None:
        """The scheduler learns of something at the next heartbeat, or at once if there is none."""
        if not self._heartbeat_s:
            self._tell(event)
            return
        moment = math.ceil(self.now / self._heartbeat_s - 1e-9) * self._heartbeat_s
        self._plan(max(moment, self.now), lambda _: self._tell(event), None)

    def _carry_out(self, instruction: Instruction) -> None:
        if self._heartbeat_s and instruction.job not in self.runs:
            return  # it has ended, and the scheduler hears of that at the next heartbeat
        match instruction:
            case Launch(job, placement, _, behind):
                run = self.runs[job]
                run.gate_open = behind is None
                self._launch(run, placement)
            case Preempt(job):
                self._stop(self.runs[job], None)
            case Move(job, placement):
                self._stop(self.runs[job], placement)
            case OpenGate(job):
                run = self.runs[job]
                run.gate_open = True
                if run.prepared:
                    self._train(run)
            case SetCores(job, cpus):
                run = self.runs[job]
                assert run.placement is not None
                before = () if self._plain else tuple(self._physics.concerned(run, self))
                run.placement = replace(run.placement, cpus=cpus)
                self._changed(run)
                for other in before:
                    self._pace(other)
            case SetShare(job, weight):
                self.runs[job].weight = weight
                self._changed(self.runs[job])
            case Refuse(job):
                del self.runs[job]
                self.results.refused.append(job)
            case Expire(job):
                self._end(self.runs[job])
            case Hold() | Promise() | AtRisk():
                pass

    # -- the life of a run ----------------------------------------------------------------------------------------

    def _submit(self, model: JobModel) -> None:
        run = self.runs[model.id] = Run(model, self.results.submitted(model))
        self._tell_submitted(run)

    def _told(self, model: JobModel) -> Estimate:
        return model.estimate if self._estimate is None else self._estimate(model)

    def _tell_units(self, run: Run, units: float) -> None:
        """What is left of an elastic gang is told in seconds at this speed from now on."""
        told, run.units = self._told(run.model), units
        if told.service_s is not None:
            self._tell(ev.Progressed(((run.model.id, run.done_s / units),)))
            self._tell(ev.JobEstimated(run.model.id, replace(told, service_s=told.service_s / units)))

    def _tell_kind(self, run: Run, kind: str) -> None:
        """What is left of a job is told in seconds on this kind of device from now on, as a live run's is."""
        told = self._told(run.model).counted_on(kind)
        run.units = 1.0 / (self._told(run.model).slower_on(kind) or 1.0)
        self._tell(ev.JobEstimated(run.model.id, told))
        self._tell(ev.Progressed(((run.model.id, run.done_s / run.units),)))

    def _tell_submitted(self, run: Run) -> None:
        model = run.model
        told = self._told(model)
        self._tell(ev.JobSubmitted(model.id, model.request, model.queue, model.submit_s, self.now, "", told))

    def _launch(self, run: Run, placement: Placement) -> None:
        if any(other.status is Status.STOPPING for d in placement.all_devices for other in self.on_device[d].values()):
            run.next_place = placement
            self._standby.append(run)
            return
        model, outcome = run.model, run.outcome
        run.turn += 1
        run.placement, run.status, run.prepared, run.speed = placement, Status.LAUNCHING, False, 0.0
        self.active[model.id] = run
        for part in placement.parts:
            self._changed_nodes[part.node] = None
            self.on_node[part.node][model.id] = run
            for device in part.devices:
                self.on_device[device][model.id] = run
        if outcome.first_start_s is None:
            outcome.first_start_s = self.now
        self.results.launched(run, self.now)
        preparing_s = model.launching_s + (model.restore_s if outcome.starts > 1 else 0.0)
        if preparing_s > 0:
            self._plan(self.now + preparing_s, self._be_prepared, run)
        else:
            self._be_prepared(run)

    def _be_prepared(self, run: Run) -> None:
        run.prepared = True
        if run.gate_open:
            self._train(run)
        else:
            run.status = Status.PREPARING
            self._learn(ev.PhaseEntered(run.model.id, Status.PREPARING))

    def _train(self, run: Run) -> None:
        run.status, run.since = Status.TRAINING, self.now
        self.results.trains(run, self.now)
        self._learn(ev.PhaseEntered(run.model.id, Status.TRAINING))
        if run.model.request.grows and run.model.throughput and run.placement is not None:
            self._tell_units(run, run.model.speed_on(len(run.placement.all_devices)) or 1.0)
        elif run.model.estimate.by_kind and run.placement is not None:
            self._tell_kind(run, self.scheduler.state.device(run.placement.devices[0]).kind)
        self._changed(run)

    def _changed(self, run: Run) -> None:
        """A run's speed may have changed, and with it that of others."""
        if run.placement is not None:
            self._changed_nodes[run.placement.node] = None
        self._pace(run)
        self._pace_others(run)

    def _pace(self, run: Run) -> None:
        if run.status is not Status.TRAINING:
            return
        self._advance(run)
        run.speed = self._physics.speed(run, self)
        run.turn += 1
        model = run.model
        until = model.service_s
        fails = model.fails_after_s
        if fails is not None and not run.failed and fails < until:
            until = fails
        if run.speed > 0:
            left = max(0.0, until - run.done_s)
            self._plan(self.now + left / run.speed, self._end_training, run)

    def _advance(self, run: Run) -> None:
        """Bring a run's progress up to now."""
        if run.status is Status.TRAINING:
            gained = (self.now - run.since) * run.speed
            run.done_s += gained
            self.results.trained(run, self.now - run.since, gained)
        run.since = self.now

    def _end_training(self, run: Run) -> None:
        self._advance(run)
        model = run.model
        if model.fails_after_s is not None and not run.failed and run.done_s < model.service_s - 1e-6:
            self._crash(run)
            return
        run.done_s, run.status, run.speed = model.service_s, Status.SAVING, 0.0
        run.turn += 1
        self.results.trains_no_more(run, self.now)
        if model.saving_s > 0:
            self._learn(ev.PhaseEntered(model.id, Status.SAVING))
            self._plan(self.now + model.saving_s, self._end, run)
            self._pace_others(run)
        else:
            self._end(run)

    def _end(self, run: Run) -> None:
        run.turn += 1
        self._vacate(run)
        self.results.ended(run, self.now)
        del self.runs[run.model.id]
        self._learn(ev.JobEnded(run.model.id, "completed"))
        if self._finished is not None:
            for name, estimate in self._finished(run.model):
                self._learn(ev.JobEstimated(name, estimate))
        if self._progress is not None and self.results.jobs % 100 == 0:
            self._progress(self.results.jobs)

    def _crash(self, run: Run) -> None:
        """The run crashes, and is submitted again; it carries on from its last progress."""
        run.failed = True
        run.turn += 1
        self.results.trains_no_more(run, self.now)
        self._vacate(run)
        run.status = Status.WAITING
        self._learn(ev.JobEnded(run.model.id, "crashed"))
        if self._heartbeat_s:
            self._plan(self.now + self._heartbeat_s, lambda _: self._resubmit(run), None)
        else:
            self._resubmit(run)

    def _change_nodes(self, nodes: tuple[Node, ...]) -> None:
        """The cluster is another one from now on."""
        there = {node.id for node in nodes}
        lost = [run for node in self.nodes if node.id not in there for run in self.on_node[node.id].values()]
        self.nodes = nodes
        for node in nodes:
            self.on_node.setdefault(node.id, {})
            for device in node.devices:
                self.on_device.setdefault(device.id, {})
        self._tell(ev.NodesChanged(nodes))
        for run in lost:
            self._lose(run)

    def _lose(self, run: Run) -> None:
        """The run's process is gone with its node."""
        self._advance(run)
        if run.status is Status.TRAINING:
            self.results.trains_no_more(run, self.now)
        run.turn += 1
        self._vacate(run)
        run.status, run.speed, run.done_s = Status.WAITING, 0.0, run.saved_s
        self.results.stopped(run)
        self._learn(ev.JobEnded(run.model.id, "lost with its node"))
        self._resubmit(run)

    def _resubmit(self, run: Run) -> None:
        self._tell_submitted(run)
        self._tell(ev.Progressed(((run.model.id, run.done_s / run.units),)))

    def _stop(self, run: Run, then: Placement | None) -> None:
        """Save and stop a run; launch it again at ``then`` if given."""
        if run in self._standby:  # it never got so far
            self._standby.remove(run)
            run.next_place = None
            self._stopped(run, then)
            return
        self._advance(run)
        trained = run.status is Status.TRAINING
        run.turn += 1
        if trained:
            self.results.trains_no_more(run, self.now)
        run.status, run.speed = Status.STOPPING, 0.0
        checkpoint_s = run.model.checkpoint_s if trained and not self._instant else 0.0
        if checkpoint_s > 0:
            self._pace_others(run)
            self._plan(self.now + checkpoint_s, lambda run: self._stopped(run, then), run)
        else:
            self._stopped(run, then)

    def _stopped(self, run: Run, then: Placement | None) -> None:
        run.turn += 1
        if run.placement is not None:
            self._vacate(run)
        run.status = Status.WAITING
        if not run.model.resumes:
            run.done_s = 0.0
        run.saved_s = run.done_s
        self.results.stopped(run)
        told = self._told(run.model)
        if then is None and told.by_kind:
            self._tell_kind(run, told.kind)
        elif then is None and run.units != 1.0:
            self._tell_units(run, 1.0)
        self._tell(ev.Progressed(((run.model.id, run.done_s / run.units),)))
        if then is not None:
            self._launch(run, then)
        elif not self._instant:
            self._tell(ev.JobStopped(run.model.id))

    def _vacate(self, run: Run) -> None:
        placement = run.placement
        assert placement is not None
        name = run.model.id
        for part in placement.parts:
            self._changed_nodes[part.node] = None
            self.on_node[part.node].pop(name, None)
            for device in part.devices:
                self.on_device[device].pop(name, None)
        self.active.pop(name, None)
        self.results.left(run, self.now)
        self._pace_others(run)
        run.placement = None
        if self._standby:
            waiting, self._standby = self._standby, []
            for other in waiting:
                assert other.next_place is not None
                self._launch(other, other.next_place)

    def _pace_others(self, run: Run) -> None:
        """Others may be faster or slower than before, because of this run."""
        if not self._plain:
            for other in self._physics.concerned(run, self):
                if other is not run:
                    self._pace(other)

    # -- reports --------------------------------------------------------------------------------------------------

    def _everyone_reports(self, _: Run) -> None:
        for node_id in self._changed_nodes:
            used = self._physics.pressure(node_id, self)
            if used:
                self._tell(ev.PressureMeasured(node_id, min(1.0, sum(used.values())), tuple(used.items())))
        self._changed_nodes = {}
        done: list[tuple[str, float]] = []
        for run in self.active.values():
            if run.status is not Status.TRAINING or self._has_nothing_to_say(run):
                continue
            self._advance(run)
            done.append((run.model.id, run.done_s / run.units))
            if run.model.losses:
                self._tell(ev.LossReported(run.model.id, run.model.loss_at(run.done_s)))
            self._tell(ev.UtilisationMeasured(run.model.id, run.model.utilisation * run.speed))
        if done:
            self._tell(ev.Progressed(tuple(done)))
        self._plan(self.now + self._report_s, self._everyone_reports, None)

    def _has_nothing_to_say(self, run: Run) -> bool:
        if not self._steady_report_s or run.model.losses:
            return False
        as_it_is = (run.speed, run.placement)
        same = run.reported == as_it_is
        if same and run.steady and self.now < run.reported_at + self._steady_report_s:
            return True
        run.reported, run.reported_at, run.steady = as_it_is, self.now, same
        return False
