"""What policies may do. Each verb changes the books at once, so that the next decision sees it, and says so outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from prefect_gpu.scheduling.fair_share.standing import Standing
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.instructions import (
    AtRisk,
    Expire,
    Finish,
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
from prefect_gpu.scheduling.model.jobs import Job, Request, Status
from prefect_gpu.scheduling.order.orders import Order
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.scheduling.state.waiting import Walk
from prefect_gpu.units import plural

_MOST_AT_ONCE = 1000  # decisions in a row that ask to look again at once


class Decision:
    """One decision in the making.

    Attributes:
        state: The books. Policies read them and change them only through the verbs.
        order: Says which waiting job comes first.
        placement: Says where a job goes.
        sharing: Says whether a job may share a device.
        abilities: What the outside world can carry out.
        now: The moment of the decision.
        instructions: What was decided so far.
        wake_at: When to look again even if nothing happens, or None.
        keeps_promises: Whether the profile starts jobs in time for their promises.
        about: The waiting job that is being decided about, for those who are told of an error; None: no single one.
        at_once: How many decisions in a row have asked to look again at once, with this one.
    """

    def __init__(
        self, state: State, policies: tuple[Order, PlacementPolicy, Sharing], abilities: Abilities, now: float
    ) -> None:
        self.state = state
        self.order, self.placement, self.sharing = policies
        self.abilities = abilities
        self.now = now
        self.instructions: list[Instruction] = []
        self.wake_at: float | None = None
        self.about: Job | None = None
        self.at_once = 0
        self._asks_at_once = False
        self._stood: tuple[tuple[int, ...], Standing | None] | None = None
        self.keeps_promises = False

    def launch(self, job: Job, placement: Placement, reason: str, behind: Job | None = None) -> None:
        """Start a waiting job; behind another, if given, whose devices it then only prepares for."""
        self.state.take(job, placement, Status.LAUNCHING, self.now, behind.id if behind else None)
        job.launched_at, job.trains_since = self.now, None
        job.story.append((self.now, f"granted {names(placement.all_devices) or 'cores'}: {reason}"))
        self.instructions.append(Launch(job.id, placement, reason, behind.id if behind else None))

    def hold(self, job: Job, code: str, reason: str) -> None:
        """Leave a job waiting. It is said once for each kind of reason."""
        if job.hold != code:
            job.hold = code
            job.story.append((self.now, f"waits: {reason}"))
            self.instructions.append(Hold(job.id, code, reason))

    def standing(self) -> Standing | None:
        """How owners stand now; None: nothing is promised to any."""
        if self.state.quotas.shares is None:
            return None
        as_of = (len(self.instructions), len(self.state.jobs), len(self.state.running), self.state.changes)
        if self._stood is None or self._stood[0] != as_of:
            self._stood = as_of, self.state.standing(stops=self.abilities.preemption is not Preemption.NONE)
        return self._stood[1]

    def look_afresh(self) -> None:
        """Who waits has changed otherwise than by a verb or an event: how owners stand is to be counted anew."""
        self._stood = None

    def walk(self) -> Walk:
        """Go through the due jobs, first things first; where there are shares, by whose turn it is."""
        standing = self.standing()
        if standing is None:
            return self.state.queue_of_waiting.in_order()
        lines = sorted(self.state.queue_of_waiting.lines(), key=lambda line: line.entries[0][0])
        turns = standing.turns((line.request, line.entries[0][1].late) for line in lines)
        return Walk(lines, turns)

    def kept_back(self, request: Request, more: Mapping[str, float] = {}) -> tuple[str, str] | None:
        """(code, reason) why its owner's share keeps a job from starting, or None; see :meth:`.Standing.limit_on`."""
        standing = self.standing()
        if standing is None:
            return None
        firm = not request.preemptible or self.abilities.preemption is Preemption.NONE
        return standing.limit_on(request, firm=firm, more=more)

    def may_have(self, job: Job, devices: int) -> bool:
        """Whether its owner's share allows an elastic job so many devices; always, where there are no shares."""
        standing = self.standing()
        more = devices - (0 if job.placement is None else len(job.placement.all_devices))
        return standing is None or more <= 0 or more <= standing.room_to_grow(job.request.owner)

    def can_stop(self, job: Job) -> bool:
        """Whether the job says that it may be stopped, and the outside world can do it."""
        return job.request.preemptible and not job.expired and self.abilities.preemption is not Preemption.NONE

    def may_stop(self, job: Job) -> bool:
        """Whether the job can be preempted or moved for others.

        One that another is prepared behind is about to end anyway, and one with a promise is left alone.
        """
        if job.behind is not None or job.id in self.state.promises.jobs:
            return False
        return self.can_stop(job) and self.state.successor(job.id) is None

    def may_give_way(self, job: Job) -> bool:
        """Whether the job can be preempted, together with whoever is prepared behind it."""
        if not self.can_stop(job) or job.behind is not None:
            return False
        successor = self.state.successor(job.id)
        return successor is None or self.can_stop(successor)

    def preempt(self, job: Job, reason: str) -> None:
        """Stop a running job to make room; it waits again when it has stopped. Whoever was behind it goes too."""
        successor = self.state.successor(job.id)
        if successor is not None:
            self._stop(successor, f"its predecessor {job.label} is stopped")
        self._stop(job, reason)

    def _stop(self, job: Job, reason: str) -> None:
        self.state.release(job, self.now)
        job.stops += 1
        job.story.append((self.now, f"stopped: {reason}"))
        if self.abilities.preemption is Preemption.INSTANT:
            job.gave_way_at = self.now
            self.state.admit(job, self.now)
        else:
            job.status = Status.STOPPING
        self.instructions.append(Preempt(job.id, reason))

    def move(self, job: Job, placement: Placement, reason: str) -> None:
        """Let a running job carry on elsewhere, or with more or fewer devices."""
        self.rearrange([(job, placement)], reason)

    def rearrange(self, moves: Sequence[tuple[Job, Placement]], reason: str) -> None:
        """Let several running jobs carry on elsewhere; some may go where others were.

        Unless moving is free, their processes start anew: they are launching until they report that they train.
        """
        self.state.rearrange(moves)
        for job, placement in moves:
            if not self.abilities.free_moves:
                self.state.progress(job, job.done(self.now), self.now)
                job.status, job.done_at = Status.LAUNCHING, None
                job.launched_at, job.trains_since = self.now, None
            job.story.append((self.now, f"moved to {names(placement.all_devices) or placement.node}: {reason}"))
            self.instructions.append(Move(job.id, placement, reason))

    def open_gate(self, job: Job, reason: str) -> None:
        """Let a prepared job train."""
        self.state.pass_gate(job, self.now)
        job.story.append((self.now, f"may train: {reason}"))
        self.instructions.append(OpenGate(job.id, reason))

    def set_cores(self, job: Job, cpus: tuple[int, ...], reason: str) -> None:
        """Bind a running job to other cores of its node; a gang's first instance."""
        placement = job.placement
        assert placement is not None
        self.state.rearrange([(job, replace(placement, cpus=cpus))])
        job.story.append((self.now, f"has {plural(len(cpus), 'core')}: {reason}"))
        self.instructions.append(SetCores(job.id, cpus, reason))

    def ask_share(self, job: Job, source: str, weight: float, reason: str) -> None:
        """Let a running job have this weight on its devices at most, as far as one policy is concerned.

        Several policies may want a job to give way, and none undoes another: the least that is asked for holds.

        Args:
            source: Which policy asks; what it asked of the job before is forgotten.
            weight: 0, to pause, to 1, which asks for nothing.
            reason: For people.

        Raises:
            ValueError: The weight is out of range.
        """
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"weight is {weight}: give a share from 0, to pause, to 1, a full one")
        before = job.share
        asked = {name: said for name, said in job.asked_shares.items() if name != source}
        if weight < 1.0:
            asked[source] = (weight, reason)
        job.asked_shares = asked
        if job.share != before:
            weight, reason = min(asked.values(), key=lambda said: said[0], default=(weight, reason))
            job.story.append((self.now, f"has weight {weight:g}: {reason}"))
            self.instructions.append(SetShare(job.id, weight, reason))

    def finish(self, job: Job, reason: str) -> None:
        """Ask a running job to end its training early. It keeps its place until it has ended."""
        job.story.append((self.now, f"is asked to end early: {reason}"))
        self.instructions.append(Finish(job.id, reason))

    def promise(self, job: Job, probability: float, reason: str) -> None:
        """Promise a job its deadline."""
        job.promised = probability
        job.story.append((self.now, f"its deadline is promised, with {probability:.0%}: {reason}"))
        self.instructions.append(Promise(job.id, probability, reason))

    def refuse(self, job: Job, earliest: float | None, reason: str) -> None:
        """Refuse a job whose deadline cannot be promised."""
        self.instructions.append(Refuse(job.id, earliest, reason))

    def at_risk(self, job: Job, reason: str) -> None:
        """Say that a promise may be broken."""
        job.story.append((self.now, f"its deadline is at risk: {reason}"))
        self.instructions.append(AtRisk(job.id, reason))

    def expire(self, job: Job, reason: str) -> None:
        """End a running job whose time is over. It keeps its place until it has ended."""
        job.expired = True
        job.story.append((self.now, f"is stopped for good: {reason}"))
        self.instructions.append(Expire(job.id, reason))

    def look_again_at(self, moment: float) -> None:
        """Ask for a ``TimePassed`` at that moment.

        Raises:
            RuntimeError: It is now, as in a thousand decisions before: each has led to the next one, for ever.
        """
        if moment <= self.now and not self._asks_at_once:
            self._asks_at_once = True
            self.at_once += 1
            if self.at_once > _MOST_AT_ONCE:
                raise RuntimeError(
                    f"look_again_at({moment:g}) is not later than now ({self.now:g}), as in "
                    f"{_MOST_AT_ONCE} decisions before: ask for a later moment, or only when something has changed"
                )
        self.wake_at = moment if self.wake_at is None else min(moment, self.wake_at)


def names(devices: tuple[str, ...]) -> str:
    """Devices as people read them; a long list is cut short."""
    if len(devices) > 8:
        return f"{', '.join(devices[:6])} and {len(devices) - 6} more"
    return ", ".join(devices)
