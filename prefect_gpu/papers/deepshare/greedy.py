"""Who starts, and on which nodes, by how much jobs slow each other down on the network (Ryu & Eo, 2023)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prefect_gpu.papers.deepshare.exchange import Exchange
from prefect_gpu.papers.deepshare.prices import Prices
from prefect_gpu.papers.deepshare.speeds import Speeds
from prefect_gpu.papers.deepshare.view import Policy, View, look
from prefect_gpu.scheduling.allocation.base import Action, tell_early, tell_limit, tell_line, why_not
from prefect_gpu.scheduling.interference.sensitivity import (
    LEAST_RATIO,
    Candidate,
    Gains,
    Key,
    Start,
    in_words,
    starts,
)
from prefect_gpu.scheduling.interference.spreading import avoided, fits_evenly, kept_from, key_of, placed, running_jobs
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.fits import free_by_node, without
from prefect_gpu.scheduling.state.waiting import Line

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

_ROUNDING = 1e-9
_MOST_EXCHANGES = 4  # at one decision


@dataclass(frozen=True)
class Rule:
    """What the greedy rule is after.

    Attributes:
        least_ratio: Nobody may end up slower than this part of the speed alone; where the quotas limit the slowdown,
            than the inverse of that.
        least_used: Part of the devices that are to be used even if jobs slow each other down a lot; 0: none.
        least_gain: What such a job must bring in all, in jobs at full speed; from 0 (completion counts) to 1.
        gpus_power: Weight of the GPUs in the divisor; 1 is plain GPU seconds, above 1 prefers small jobs.
        worth_power: Weigh each job's ratio by what its work is worth, see
            :meth:`~prefect_gpu.scheduling.interference.sensitivity.SensitivityTable.worths`; 0: all are worth the same.
        priced: Weigh each job's ratio by its GPUs and their price instead, wherever there is one to tell; see
            :class:`~prefect_gpu.papers.deepshare.prices.Prices`.
    """

    least_ratio: float = LEAST_RATIO
    least_used: float = 0.0
    least_gain: float = 0.4
    gpus_power: float = 1.0
    worth_power: float = 0.0
    priced: bool = False


class ContentionAware(Action):
    """RL-Hybrid (§IV): what the policy starts, and if it starts nothing, what the greedy rule does.

    The greedy rule: while something fits, start the job, on the nodes, with the largest gain ÷ (remaining seconds ×
    GPUs^power). Gain is the sum of the changes of everybody's throughput ratio, the new job's own included. Starts
    that leave anybody a ratio below ``least_ratio`` are out of the question, unless fewer than ``least_used`` of the
    devices are in use: then whatever makes the sum of all ratios larger by ``least_gain`` may start. Running jobs stay
    where they are, unless ``exchanges`` says otherwise.

    Jobs of a queue of lower priority are looked at when no other can start. Of the jobs that are alike in all but
    their length, only the first in the profile's order is looked at, so that order should be the shortest first.

    Args:
        speeds: See :class:`~prefect_gpu.scheduling.interference.spreading.Speeds`.
        policy: A policy to ask first, again and again until it starts nothing; None: the greedy rule decides alone.
        rule_for: Which ways to start a job are left to the rule whatever the policy does; None: the rule decides about
            all jobs, but only where the policy starts nothing.
        rule: What the greedy rule is after.
        least_value: A start of the policy is made only if the rule values it at so much of its own best one, which is
            made else; 0: the policy decides alone, and the rule where that starts nothing, as in the paper.
        head: The policy is shown only jobs that need at most so many times the GPU seconds of the one that needs the
            fewest: it was never taught to decide who comes first. Infinite: all.
        fewest: See :class:`~prefect_gpu.scheduling.interference.spreading.Speeds`.
        exchanges: Whether running jobs are stopped or moved where clearly more gets done by that, see
            :class:`~prefect_gpu.papers.deepshare.exchange.Exchange`; else they stay where they are.
    """

    def __init__(
        self,
        speeds: Mapping[Key, float] | None = None,
        policy: Policy | None = None,
        *,
        rule_for: Callable[[Candidate], bool] | None = None,
        rule: Rule | None = None,
        least_value: float = 0.0,
        head: float = math.inf,
        fewest: bool = False,
        exchanges: bool = False,
    ) -> None:
        self._speeds = Speeds(speeds, fewest=fewest)
        self._policy = policy
        self._rule_for = rule_for
        self._rule = rule or Rule()
        self._least_value, self._head = least_value, head
        self._prices = Prices(self._speeds)
        self._exchange = Exchange(self._speeds) if exchanges else None

    def act(self, decision: Decision) -> bool:
        """See the class."""
        tell_early(decision)
        waiting = decision.state.queue_of_waiting
        for priority in sorted({decision.state.queue(line.queue).priority for line in waiting.lines()}):
            self._start_some(decision, priority)
            for _ in range(_MOST_EXCHANGES):
                if not self._exchanged(decision, priority):
                    break
                self._start_some(decision, priority)
        lines = waiting.lines()
        view = self._look(decision, [line.entries[0][1] for line in lines])
        fits = {candidate.job for candidate in view.candidates}
        for at, line in enumerate(lines):
            self._tell(decision, line, at in fits)
        return True

    def _start_some(self, decision: Decision, priority: int) -> None:
        """Start jobs of the queues of one priority."""
        started = False
        while self._policy is not None and not self._least_value:
            jobs = self._firsts(decision, priority)
            view = self._look(decision, jobs)
            if not sum(
                self._start(decision, jobs[start.job], start, view) for start in self._policy(self._shown(view))
            ):
                break
            started = True
        while self._rule_for is not None or not started:
            jobs = self._firsts(decision, priority)
            view = self._look(decision, jobs)
            wanted = self._policy(self._shown(view)) if self._policy is not None and self._least_value else ()
            chosen = self._choose(decision, view, wanted)
            if chosen is None or not self._start(decision, jobs[chosen.job], chosen, view):
                break
        while any(self._start_plain(decision, job) for job in self._firsts(decision, priority)):
            pass

    def _shown(self, view: View) -> View:
        """What the policy sees: those who come first and, where the rule decides about the others, need several nodes.

        It would spread those as well that one node could hold, were it free.
        """
        needs_s = [one.remaining_s * one.key.gpus for one in view.candidates]
        most_s = self._head * min(needs_s, default=1.0) * (1 + _ROUNDING)
        largest = max(view.sizes.values(), default=0) if self._rule_for is None else 0
        shown = [
            one
            for one, needed_s in zip(view.candidates, needs_s, strict=True)
            if needed_s <= most_s and (one.key.gpus > largest or self._speeds.knows(one.key))
        ]
        return replace(view, candidates=shown)

    def _least_now(self, decision: Decision) -> float:
        limit = decision.state.quotas.slowdown_limit
        return self._rule.least_ratio if limit is None else 1 / limit

    def _exchanged(self, decision: Decision, priority: int) -> bool:
        """Make one change of who runs where, if one is worth it; whether it was made."""
        if self._exchange is None:
            return False
        jobs = self._firsts(decision, priority)
        change = self._exchange.find(decision, jobs, self._weights(decision, jobs))
        if change is None:
            return False
        job, state, waiting = change.job, decision.state, jobs[change.start.job]
        if change.nodes is None:
            decision.preempt(job, f"{waiting.label} makes better use of its nodes beside the jobs there")
            return self._start(decision, waiting, change.start, self._look(decision, jobs))
        with without([job], state):
            to = placed(job, sorted(change.nodes), free_by_node(job, state), state, decision.sharing)
        decision.move(job, to, f"{waiting.label} gets its devices")
        return True

    def _weights(self, decision: Decision, waiting: Iterable[Job]) -> Mapping[Key, float]:
        """Of the ratios of all that run or wait: GPUs × price, or GPUs alone if there is none."""
        state = decision.state
        keys = [one.key for one in running_jobs(decision).values()]
        for job in waiting:
            widths = self._speeds.worthwhile(job.request, len(state.numbered), state.largest_node)
            keys += [key_of(job, width) for width in widths]
        prices = self._prices.of(keys, decision) if self._rule.priced else None
        return {key: key.gpus * (1.0 if prices is None else prices[key]) for key in keys}

    def _choose(self, decision: Decision, view: View, wanted: Sequence[Start] = ()) -> Start | None:
        """The greedy rule; of starts that it values nearly alike, one that is wanted."""
        least_ratio = self._least_now(decision)
        if self._rule_for is not None:
            others = {one.job for one in view.candidates if not self._rule_for(one)}
            view = replace(view, candidates=[one for one in view.candidates if one.job not in others])
        rule = self._rule
        worths = view.table.worths(view.keys, rule.worth_power) if rule.worth_power else {}
        gpus_power = rule.gpus_power
        prices = self._prices.of(view.keys, decision) if rule.priced else None
        if prices is not None:  # the GPUs are in the worth, and for the preference of small jobs in the divisor again
            worths, gpus_power = {key: key.gpus * price for key, price in prices.items()}, gpus_power + 1

        def choose(least_ratio: float, least_gain: float = -math.inf) -> Start | None:
            gains = Gains(view.running, view.table, least_ratio, least_gain, worths)
            return choose_wanted(view, gains, gpus_power, wanted, self._least_value)

        chosen = choose(least_ratio - _ROUNDING)
        devices = sum(view.sizes.values())
        if chosen is not None or devices - sum(view.free.values()) >= rule.least_used * devices:
            return chosen
        return choose(0.0, least_gain=rule.least_gain)

    def _firsts(self, decision: Decision, priority: int) -> list[Job]:
        """The first job of each kind and size of a priority that no limit keeps back, in order."""
        state = decision.state
        found = []
        walk = state.queue_of_waiting.in_order()
        for line, job in walk:
            walk.leave()
            if state.queue(line.queue).priority == priority and state.limit_on(line.queue) is None:
                found.append(job)
        return found

    def _look(self, decision: Decision, jobs: Sequence[Job]) -> View:
        return look(decision, jobs, self._speeds)

    def _start(self, decision: Decision, job: Job, start: Start, view: View) -> bool:
        """Start a job as chosen. False, and nothing changed, if it does not fit there after all."""
        state, sharing = decision.state, decision.sharing
        if job.placement is not None or state.limit_on(job.queue) is not None:
            return False
        room = free_by_node(job, state)
        each = start.key.gpus // len(start.nodes)
        if not start.nodes.isdisjoint(avoided(job, state)):
            return False
        if any(len(room.get(number, ())) < each for number in start.nodes):
            return False
        decision.launch(
            job, placed(job, sorted(start.nodes), room, state, sharing), in_words(start, view.running, view.table)
        )
        return True

    def _start_plain(self, decision: Decision, job: Job) -> bool:
        """A job that cannot be spread evenly here goes where the profile's placement puts it, if it fits."""
        state = decision.state
        if state.limit_on(job.queue) is not None:
            return False
        if fits_evenly(job, state, self._speeds.widths(job.request, len(state.numbered))):
            return False
        placement = decision.placement.place(job, state, decision.sharing)
        if placement is None:
            return False
        decision.launch(job, placement, "there is room for it")
        return True

    def _tell(self, decision: Decision, line: Line, fits: bool) -> None:
        if tell_limit(decision, line):
            return
        first, state = line.entries[0][1], decision.state
        if avoided(first, state):
            others = " and ".join(other.label for other in kept_from(first, state))
            words = f"it and {others} slowed each other down too much, and other nodes have no room"
            tell_line(decision, line, "contention", words)
        elif fits:
            words = f"it, or a run beside it, would keep less than {self._least_now(decision):.0%} of its speed"
            tell_line(decision, line, "contention", words)
        else:
            tell_line(decision, line, *why_not(decision, line))


def choose_wanted(
    view: View, gains: Gains, gpus_power: float = 1.0, wanted: Sequence[Start] = (), least_value: float = 1.0
) -> Start | None:
    """The greedy rule, :func:`.choose_start`, that prefers small jobs, or what somebody else would start.

    Args:
        view: The waiting jobs, and the GPUs that are free.
        gains: What starts would bring.
        gpus_power: Power of the GPUs in the divisor: above 1, jobs of few GPUs are preferred more.
        wanted: Starts that somebody else would make. The first of them that comes near enough to the best is chosen.
        least_value: How near: in parts of the best one's value.
    """

    def value(gain: float, candidate: Candidate) -> float:
        return gain / (candidate.remaining_s * candidate.key.gpus**gpus_power)

    best: tuple[float, Start] | None = None
    for gain, candidate, start in starts(view.candidates, view.free, gains):
        if best is None or value(gain, candidate) > best[0]:
            best = value(gain, candidate), start
    if best is None:
        return None
    known = {(one.job, one.key): one for one in view.candidates}
    for start in wanted:
        one = known.get((start.job, start.key))
        if one is None:
            continue
        for gain, _, _ in starts([replace(one, nodes=[start.nodes])], view.free, gains):
            if value(gain, one) >= least_value * best[0]:
                return start
    return best[1]
