"""The groups of jobs with the same GPU count: who shares with whom when so many groups run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from prefect_gpu.papers.muri.interleaving import Interleaving, Mixture

LEAST_GAIN = 1e-9
"""Below this, a difference in worth is rounding."""

_FEW_PROFILES = 24  # with more, mixtures seldom repeat, so that most have to be computed
_PRICE_OF_NEW = 40  # comparisons that take as long as computing a mixture


class _Group:
    """Jobs on the same GPUs. `weight` is Σ time alone × worth, so that the group is worth weight × rate."""

    __slots__ = ("jobs", "mixture", "weight")

    def __init__(self, jobs: list[int], mixture: Mixture, weight: float) -> None:
        self.jobs = jobs
        self.mixture = mixture
        self.weight = weight

    @property
    def value(self) -> float:
        return self.weight * self.mixture.rate


class Sharers:
    """Jobs of one size, and what any number of groups of them is worth.

    Args:
        jobs: (name, number of its profile, worth) of each job, the most urgent first.
        model: How fast mixtures advance.
        allowance: Comparisons to spend on joining, each time.

    Attributes:
        spent: Comparisons made so far. Where there are so many profiles that mixtures seldom repeat, each counts for
            many. (Whether a mixture is known already must not matter, or the groups would depend on the past.)
    """

    def __init__(self, jobs: Sequence[tuple[int, int, float]], model: Interleaving, allowance: int) -> None:
        self.jobs = [name for name, _, _ in jobs]
        self._profiles = [profile for _, profile, _ in jobs]
        self._weights = [model.alone(profile) * worth for _, profile, worth in jobs]
        self._model = model
        self._values: dict[int, float] = {0: 0.0}
        self._allowance = allowance
        self._price = 1 if len(set(self._profiles)) <= _FEW_PROFILES else _PRICE_OF_NEW
        self.spent = 0

    def value(self, groups: int) -> float:
        """Worth of the first `groups` jobs each with GPUs of its own and the others joined to them where that gains."""
        known = self._values.get(groups)
        if known is None:
            known = self._values[groups] = sum(group.value for group in self._joined(groups))
        return known

    def _joined(self, groups: int) -> list[_Group]:
        """Each waiting job in order joins the group that gains most."""
        model, profiles, weights = self._model, self._profiles, self._weights
        limit = self.spent + self._allowance
        self.spent += groups
        made = [_Group([job], model.mixture([profiles[job]]), weights[job]) for job in range(groups)]
        # Of groups with the same mixture, the one of least weight loses least: only it is looked at.
        open_groups: dict[Mixture, list[tuple[float, int]]] = {}
        for place, group in enumerate(made):
            open_groups.setdefault(group.mixture, []).append((group.weight, place))
        for heap in open_groups.values():
            heapq.heapify(heap)
        for job in range(groups, len(profiles)):
            if not open_groups or self.spent > limit:
                break
            self.spent += 1 + len(open_groups) * self._price
            profile, weight = profiles[job], weights[job]
            best_gain, best = LEAST_GAIN, None
            for mixture, heap in open_groups.items():
                grown = model.grown(mixture, profile)
                if grown is not None:
                    lightest = heap[0][0]
                    gain = (lightest + weight) * grown.rate - lightest * mixture.rate
                    if gain > best_gain:
                        best_gain, best = gain, (mixture, grown)
            if best is None:
                continue
            mixture, grown = best
            heap = open_groups[mixture]
            _, place = heapq.heappop(heap)
            if not heap:
                del open_groups[mixture]
            group = made[place]
            group.jobs.append(job)
            group.mixture = grown
            group.weight += weight
            if len(group.jobs) < model.largest:
                heapq.heappush(open_groups.setdefault(grown, []), (group.weight, place))
        return made

    def polished(self, groups: int, budget: int) -> list[tuple[int, ...]]:
        """So many groups of names, improved by moving and swapping jobs until nothing gains or the budget is spent."""
        made = self._joined(groups)
        home: list[_Group | None] = [None] * len(self.jobs)
        for group in made:
            for job in group.jobs:
                home[job] = group
        limit = self.spent + budget
        round_price = self._price * sum(len(group.jobs) for group in made)
        improving = len(self.jobs) > 1 and bool(made)
        while improving:
            improving = False
            for job in range(len(self.jobs)):
                self.spent += round_price
                if self.spent > limit:
                    self.spent = limit
                    improving = False
                    break
                improving |= self._resettle(job, made, home)
        return [tuple(sorted(self.jobs[job] for job in group.jobs)) for group in made]

    def _resettle(self, job: int, made: list[_Group], home: list[_Group | None]) -> bool:
        """Makes the one change about this job that gains most: leave, move, or swap with a job of another group."""
        model, profiles, weights = self._model, self._profiles, self._weights
        profile, weight, own = profiles[job], weights[job], home[job]
        best_gain, best_target, best_other = LEAST_GAIN, own, None
        leaving = 0.0
        may_leave = own is None or len(own.jobs) > 1
        if own is not None and may_leave:
            rest = model.reduced(own.mixture, profile)
            if rest is None:
                may_leave = False
            else:
                leaving = (own.weight - weight) * rest.rate - own.value
                if leaving > best_gain:
                    best_gain, best_target = leaving, None
        for group in made:
            if group is own:
                continue
            value = group.weight * group.mixture.rate
            if may_leave:
                grown = model.grown(group.mixture, profile)
                if grown is not None:
                    gain = (group.weight + weight) * grown.rate - value + leaving
                    if gain > best_gain:
                        best_gain, best_target, best_other = gain, group, None
            for other in group.jobs:
                theirs, lighter = profiles[other], weights[other]
                changed = model.replaced(group.mixture, theirs, profile)
                if changed is None:
                    continue
                gain = (group.weight - lighter + weight) * changed.rate - value
                if own is not None:
                    if theirs == profile and own.mixture is group.mixture:
                        continue  # both groups keep their rate: nothing is gained
                    taken = model.replaced(own.mixture, profile, theirs)
                    if taken is None:
                        continue
                    gain += (own.weight - weight + lighter) * taken.rate - own.value
                if gain > best_gain:
                    best_gain, best_target, best_other = gain, group, other
        if best_target is own:
            return False
        self._move(job, own, best_target, best_other, home)
        return True

    def _move(
        self, job: int, own: _Group | None, target: _Group | None, other: int | None, home: list[_Group | None]
    ) -> None:
        for group, leaves, joins in ((own, job, other), (target, other, job)):
            if group is None:
                continue
            if leaves is not None:
                group.jobs.remove(leaves)
            if joins is not None:
                group.jobs.append(joins)
            group.mixture = self._model.mixture([self._profiles[member] for member in group.jobs])
            group.weight = sum(self._weights[member] for member in group.jobs)
        home[job] = target
        if other is not None:
            home[other] = own
