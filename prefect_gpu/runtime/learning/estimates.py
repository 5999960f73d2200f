"""What every run of the pool is expected to need: from its submission on, and corrected while it trains.

All of it happens on the controller's event loop and takes a few milliseconds at most. What is learned arrives from
elsewhere (:mod:`~prefect_gpu.runtime.learning.learner`) as an :class:`~prefect_gpu.estimation.estimator.Estimator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from prefect_gpu.estimation.goodput.batch_choice import BatchChoice
from prefect_gpu.estimation.online.training import Outlook, Training
from prefect_gpu.estimation.runs import (
    LAUNCHING_S,
    MEMORY_BYTES,
    NETWORK_BYTES_PER_S,
    NOTHING_KNOWN,
    SAVING_S,
    TRAINING_S,
    UTILISATION,
    Known,
    RunEstimate,
)
from prefect_gpu.estimation.submission import declared_of, known_of
from prefect_gpu.estimation.throughput.speeds import FIXED_APART, apart_of, assumed, both, corrected, speeds_of
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.launch.launch import Follower, Launch
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Estimate
from prefect_gpu.training import protocol

if TYPE_CHECKING:
    from prefect_gpu.estimation.estimator import Estimator

_MOVED = 0.02  # part of the expected training time from which on the scheduler is told that it has changed
_EVERY_S = 1.0  # and not more often than this
_FASTER = 0.05  # likewise of its speed on some number of devices: less is not worth a new plan
_LEAVES_S = 1.0  # beside its checkpoint: for the step that it is in, and the end of its process
_OTHER = 0.25  # part of a time from which on a checkpoint takes another one
_FORGETS = 0.1
NOTHING_TOLD = Estimate(waits=False)
"""Of a program that nobody has seen run, it is not even known that it waits at its gate."""

_MEASURED_USE = 10  # samples of the usage from which on their mean stands for the utilisation


@dataclass
class _Followed:
    """What is kept of a run.

    Attributes:
        learned: Its steps per second on 1, 2, … devices, from the history alone.
        learned_apart: The same on several nodes.
        own: The same by number of devices, as the run itself was measured.
        own_apart: Likewise on several nodes.
        wide: Whether its devices may be on several nodes.
        batches: Where the pool chooses its batch: what that may be, by what the run has measured.
        batch_sizes: Samples of the smallest and of the largest one; None: the batch is its own affair.
        here: Of a run that trains with such a batch: its devices, their nodes, and the batch.
        weighed: Steps that had been measured on its devices when that was last looked at.
        earlier_s: Seconds of service that the scheduler counts of its earlier launches.
    """

    known: Known
    max_gpus: int | None = None
    learned: tuple[float, ...] = ()
    own: dict[int, float] = field(default_factory=dict)
    learned_apart: tuple[float, ...] = ()
    own_apart: dict[int, float] = field(default_factory=dict)
    wide: bool = False
    batch_sizes: tuple[int, int] | None = None
    batches: BatchChoice | None = None
    here: tuple[int, int, int] | None = None
    weighed: float = 0.0
    earlier_s: float = 0.0
    prior: RunEstimate = NOTHING_KNOWN
    told: Estimate = NOTHING_TOLD
    told_at: float = float("-inf")
    training: Training | None = None

    def measured(self, kept: Mapping[str, list[float]] | None) -> None:
        """What it has measured itself, as its record has it."""
        self.own, self.own_apart = speeds_of(kept), apart_of(kept)
        if self.batch_sizes is not None:
            self.batches = BatchChoice.of(self.batch_sizes, kept)


class Estimates(Follower):
    """Keeps the estimate of each run that waits or is launched.

    Args:
        done_s: Seconds of service that the scheduler counts of a run so far. What a launch measures of a run that
            carries on is only the rest of it, and the scheduler is to be told of the whole.
        fleet: The pool's devices, of which it matters which kinds they are; None: unknown.

    Attributes:
        estimator: What was learned so far; None: nothing.
    """

    def __init__(
        self, done_s: Callable[[str], float] = lambda _: 0.0, fleet: Callable[[], Fleet | None] = lambda: None
    ) -> None:
        self.estimator: Estimator | None = None
        self._fleet = fleet
        self._done_s = done_s
        self._runs: dict[str, _Followed] = {}
        self._saves: dict[str, float] = {}  # by program, seconds that a checkpoint takes
        self._speeds: dict[str, dict[str, list[float]]] = {}  # of elastic runs between two launches, as records have it

    def submitted(
        self,
        run_id: str,
        known: Known,
        max_gpus: int | None = None,
        *,
        wide: bool = False,
        batch_sizes: tuple[int, int] | None = None,
        speeds: Mapping[str, list[float]] | None = None,
    ) -> Estimate:
        """A run waits: what the scheduler is to know of it.

        Args:
            max_gpus: Most GPUs that an elastic run can use; its speed on each number of them is estimated, too.
            wide: Whether these may be on several nodes, so that the speeds there are estimated, too.
            batch_sizes: Samples of the smallest and of the largest batch, where the pool chooses it.
            speeds: What an elastic run that was adopted has measured itself, as its record has it.
        """
        if speeds:
            self._speeds[run_id] = {devices: list(total) for devices, total in speeds.items()}
        run = self._runs[run_id] = _Followed(known, max_gpus, wide=wide, batch_sizes=batch_sizes)
        run.measured(self._speeds.get(run_id))
        self._plan(run)
        return run.told

    def adopted_anew(self, launch: Launch, device_kind: str | None) -> Iterator[ev.JobEstimated]:
        """A run was adopted, and the scheduler knows it: what it is to know of its needs.

        Args:
            device_kind: Of the pool's devices.
        """
        record = launch.record
        kind = (record.kind or device_kind) if record.request.gpus else None
        parameters = record.known.get("parameters") or {}
        known = known_of(str(record.known.get("flow_name")), parameters, record.request, {}, kind)
        told = self.submitted(
            launch.run_id,
            known,
            record.request.most_if_elastic,
            wide=record.request.grows,
            batch_sizes=record.request.batch_sizes,
            speeds=record.speeds,
        )
        yield ev.JobEstimated(launch.run_id, told)
        if launch.phase == protocol.TRAINING:
            yield from self._entered(launch, record.times[protocol.TRAINING])

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> Iterator[ev.JobEstimated]:
        """See :class:`.Follower`. What a run declares of itself is known from the phase on in which it does."""
        if kind == protocol.PHASE and launch.phase == protocol.TRAINING:
            yield from self._entered(launch, at)
        elif kind == protocol.PROGRESS:
            yield from self._progressed(launch, at)
        elif kind == protocol.CHECKPOINT:
            yield from self._saved(launch, data.get("seconds"))

    def _saved(self, run: Launch, seconds: float | None) -> Iterator[ev.JobEstimated]:
        """A checkpoint took so long: the scheduler is told if that is another time than was thought."""
        followed = self._runs.get(run.run_id)
        if followed is None or seconds is None:
            return
        before = self._saves.get(followed.known.program)
        # Slow ones count at once, for a run must have saved before its device is gone; quick ones little by little.
        now = seconds if before is None else max(seconds, before + _FORGETS * (seconds - before))
        self._saves[followed.known.program] = now
        told = followed.told.checkpoint_s
        if told is None or abs(now + _LEAVES_S - told) > _OTHER * told:
            followed.told = self._with_save(followed.told, followed.known)
            yield ev.JobEstimated(run.run_id, followed.told)

    def _with_save(self, plan: Estimate, known: Known) -> Estimate:
        saves = self._saves.get(known.program)
        return plan if saves is None else replace(plan, checkpoint_s=saves + _LEAVES_S)

    def renewed(self, run_id: str) -> ev.JobEstimated | None:
        """More was learned: what is to be told of a run that still waits; None if nothing changed."""
        run = self._runs.get(run_id)
        if run is None or run.training is not None:
            return None
        before = run.told
        self._plan(run)
        return None if run.told == before else ev.JobEstimated(run_id, run.told)

    def _entered(self, run: Launch, at: float) -> Iterator[ev.JobEstimated]:
        """The run trains since a time in Unix seconds."""
        followed = self._runs.get(run.run_id)
        if followed is None:
            return
        declared = run.record.known.get("features", {})
        followed.known = replace(followed.known, declared=declared_of(declared))
        fleet = self._fleet()
        devices = fleet.devices_of(run.record.placement) if fleet is not None else []
        kind = run.record.kind or next((device.kind for device in devices), None)
        if kind is not None:  # where it might go was a guess
            followed.known = replace(followed.known, device_kind=kind)
        # Of an elastic run, what is expected of it where it is; what it may gain elsewhere is its throughput.
        here = followed.known
        if run.record.request.is_elastic:
            here = replace(here, gpus=len(run.record.placement.all_devices))
            followed.weighed = 0.0
            followed.here = (*run.spread, run.record.batch_size) if run.record.batch_size else None
        followed.prior = self._estimate(here)
        steps = declared.get("steps")
        first = run.record.progress.get("first_step") or 0
        followed.earlier_s = self._done_s(run.run_id)
        followed.training = Training(followed.prior, steps if isinstance(steps, int) else None, at, int(first))
        yield from self._tell(run, followed, at)

    def _progressed(self, run: Launch, at: float) -> Iterator[ev.JobEstimated]:
        """The run has come as far as its record says, at a time in Unix seconds."""
        followed = self._runs.get(run.run_id)
        if followed is None or followed.training is None:
            return
        step, steps = run.record.progress.get("step"), run.record.progress.get("steps")
        if isinstance(steps, int):
            followed.training.steps = steps
        if isinstance(step, int):
            followed.training.report(step, at)
        yield from self._tell(run, followed, at)

    def released(self, launch: Launch, at: float, carries_on: bool) -> None:
        """See :class:`.Follower`. What a run that carries on has measured of itself still counts."""
        if not carries_on:
            self.forget(launch.run_id)
            return
        if launch.record.speeds:
            self._speeds[launch.run_id] = launch.record.speeds
        followed = self._runs.get(launch.run_id)
        if followed is not None:
            followed.training = followed.here = None
            followed.measured(launch.record.speeds)

    def speeds(self, run_id: str) -> dict[str, list[float]]:
        """What an elastic run did in earlier launches, for the record of the next one; empty: nothing is known."""
        return {devices: list(total) for devices, total in self._speeds.get(run_id, {}).items()}

    def batch_size(self, run_id: str, place: Placement) -> int | None:
        """Samples of the batch that a run is to train with there; None: that is its own affair."""
        run = self._runs.get(run_id)
        if run is None or run.batches is None:
            return None
        return run.batches.best(len(place.all_devices), len({part.node for part in place.parts if part.devices}))

    def forget(self, run_id: str) -> None:
        """The run is over, or waits no more."""
        self._runs.pop(run_id, None)
        self._speeds.pop(run_id, None)

    def throughput(self, run_id: str, *, apart: bool = False) -> tuple[tuple[float, ...], dict[int, float]]:
        """Of an elastic run: (steps per second on 1, 2, … devices as the scheduler was told, those it has measured).

        Args:
            apart: On several nodes, and not on one.
        """
        run = self._runs.get(run_id)
        if run is None:
            return (), {}
        return (run.told.apart, dict(run.own_apart)) if apart else (run.told.throughput, dict(run.own))

    def of(self, run_id: str) -> RunEstimate:
        """What was estimated of a run before it trained."""
        run = self._runs.get(run_id)
        return NOTHING_KNOWN if run is None else run.prior

    def outlook(self, run_id: str, now: float) -> Outlook | None:
        """What is expected of the rest of a run's training; None if it does not train, or nobody knows."""
        run = self._runs.get(run_id)
        return None if run is None or run.training is None else run.training.outlook(now)

    def drift(self, run_id: str) -> float | None:
        """By which factor a run's steps take longer than expected, if that is no chance; else None."""
        run = self._runs.get(run_id)
        return None if run is None or run.training is None else run.training.drift()

    def _plan(self, run: _Followed) -> None:
        run.prior, run.told = self._estimate(run.known), NOTHING_TOLD
        if self.estimator is not None:
            run.learned = self.estimator.throughput(run.known, run.max_gpus) if run.max_gpus else ()
            if run.max_gpus and run.wide:
                run.learned_apart = self.estimator.throughput(run.known, run.max_gpus, apart=True)
            run.told = self._with_kinds(to_plan(run.prior), run.known)
        throughput, apart = _speeds_of(run)
        run.told = self._with_save(replace(run.told, throughput=throughput, apart=apart), run.known)

    def _with_kinds(self, plan: Estimate, known: Known) -> Estimate:
        """The plan, with how long the run would take on the pool's other kinds of devices, if that is known."""
        fleet, kind = self._fleet(), known.device_kind
        kinds = fleet.kinds if fleet is not None else ()
        if self.estimator is None or kind is None or len(kinds) < 2:
            return plan
        told = self.estimator.by_kind(known, kinds)
        if kind not in told or told[kind].median <= 0.0:
            return plan
        factors = tuple((one, found.median / told[kind].median) for one, found in told.items())
        return replace(plan, kind=kind, by_kind=factors)

    def _estimate(self, known: Known) -> RunEstimate:
        return NOTHING_KNOWN if self.estimator is None else self.estimator.estimate(known)

    def _tell(self, run: Launch, followed: _Followed, at: float) -> Iterator[ev.JobEstimated]:
        if at - followed.told_at < _EVERY_S:
            return
        plan = _corrected(self._with_kinds(to_plan(followed.prior), followed.known), followed, run, at)
        # Without it, the run would be elastic no more.
        throughput, apart = _weighed(followed, run)
        plan = self._with_save(replace(plan, throughput=throughput, apart=apart), followed.known)
        before, after = followed.told.service_s, plan.service_s
        moved = before is None or after is None or abs(after - before) > _MOVED * before
        more = plan.memory_bytes != followed.told.memory_bytes or plan.throughput != followed.told.throughput
        more |= plan.apart != followed.told.apart
        if plan != followed.told and (moved or more):
            followed.told, followed.told_at = plan, at
            yield ev.JobEstimated(run.run_id, plan)


def to_plan(estimate: RunEstimate) -> Estimate:
    """What the scheduler plans with: medians of times, and for memory the upper end of the interval.

    Memory and utilisation decide about company on a device, so that they are only told where runs of the same program
    have shown them: a run of which nothing is known gets whole devices. So is what a run sends, for which a gang may
    wait: half of what passed its network, since the instances of a gang send as much as they receive.
    """
    if not estimate.targets:
        return NOTHING_TOLD
    found = estimate.targets
    own = estimate.from_runs > 0 or estimate.ran_out_of_memory
    memory = found.get(MEMORY_BYTES) if own else None
    use = found.get(UTILISATION) if own else None
    network = found.get(NETWORK_BYTES_PER_S) if own else None
    return Estimate(
        service_s=found[TRAINING_S].median if TRAINING_S in found else None,
        service_high_s=found[TRAINING_S].high if TRAINING_S in found else None,
        launching_s=found[LAUNCHING_S].median if LAUNCHING_S in found else 0.0,
        saving_s=found[SAVING_S].median if SAVING_S in found else 0.0,
        utilisation=use.median if use is not None else None,
        memory_bytes=int(memory.high) if memory is not None else None,
        sent_bps=network.median / 2.0 if network is not None else None,
        waits=estimate.from_runs > 0 and LAUNCHING_S in found and TRAINING_S in found,
    )


def as_row(estimate: RunEstimate) -> dict[str, Any]:
    """An estimate as the history keeps it, to be compared with what was measured; empty if there was none."""
    if not estimate.targets:
        return {}
    intervals = {name: [one.median, one.low, one.high] for name, one in estimate.targets.items()}
    return {**intervals, "from_runs": estimate.from_runs, "basis": estimate.basis}


def _weighed(followed: _Followed, run: Launch) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """An elastic run's throughput with its own speed in it, as often as that rests on twice as many steps as before.

    What the scheduler was told stands unless a speed differs clearly: each new plan may cost somebody a restart.
    """
    before = followed.told.throughput, followed.told.apart
    total = run.record.speeds.get(run.place)
    if not followed.max_gpus or not run.record.request.is_elastic or total is None:
        return before
    if total[0] < 2.0 * followed.weighed:
        return before
    followed.weighed = total[0]
    followed.measured(run.record.speeds)
    now = _speeds_of(followed)
    return before if all(map(_alike, now, before)) else now


def _alike(now: Sequence[float], before: Sequence[float]) -> bool:
    return len(now) == len(before) and all(
        abs(new - old) <= _FASTER * old for new, old in zip(now, before, strict=True)
    )


def _speeds_of(followed: _Followed) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A run's speeds on one node and, if it may be on several, there."""
    most, learned, apart = followed.max_gpus, followed.learned, followed.learned_apart
    if most and followed.batches is not None and followed.batches.known:
        near = followed.batches.speeds(most, here=followed.here)
        return near, followed.batches.speeds(most, apart=True, here=followed.here) if followed.wide else ()
    if not most or not (followed.own or followed.own_apart):
        return learned, apart
    if not any(learned):
        learned, apart = assumed(most), assumed(most, FIXED_APART)
    if not followed.wide:
        return corrected(learned, followed.own), ()
    return both(learned, apart, followed.own, followed.own_apart)


def _corrected(plan: Estimate, followed: _Followed, run: Launch, at: float) -> Estimate:
    """The plan with what has been measured so far in the place of what was estimated."""
    training = followed.training
    outlook = training.outlook(at) if training is not None else None
    if training is not None and outlook is not None:
        by_steps = training.steps is not None  # only so is known that this launch is the rest of a run
        before_s = followed.earlier_s if by_steps else 0.0
        total = outlook.total_s
        seconds, high = total.median + before_s, total.high + before_s
        plan = replace(plan, service_s=seconds, service_high_s=high, measured=True)
    memory = run.usage.get("device_memory_bytes")
    if memory is not None and memory.peak is not None and memory.peak > (plan.memory_bytes or 0):
        plan = replace(plan, memory_bytes=int(memory.peak))
    use = run.usage.get("device_util")
    if use is not None and use.mean is not None and use.count >= _MEASURED_USE:
        plan = replace(plan, utilisation=use.mean)
    return plan
