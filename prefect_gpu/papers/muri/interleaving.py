"""How fast jobs advance that share GPUs by interleaving their stages.

An iteration of training has three stages that keep different devices busy: loading (storage and cores), computing
(GPU) and synchronising (network). Jobs on the same GPUs can run different stages at the same time, advancing one
iteration each per common *cycle*. The model is the one of Muri (SIGCOMM '22), as its public simulator computes it.

Times may be in any unit, as long as it is one: only their ratios matter for a throughput.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

SLOTS = 4
"""Slots of the rotation, and so the largest number of jobs that share GPUs."""

MEASURED_FACTORS = (1.015, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015)
"""Measured ÷ modelled cycle for one to four jobs."""

_AGREEMENT = 1e-3  # two successive periods this close (relative) count as the steady one
_ROUNDS = 2  # the rotation is followed for this many rounds at most, as the published figures were


class Profile(NamedTuple):
    """What a job does in one iteration when it is alone: the whole and its three stages, in one unit of time."""

    iteration: float
    load: float
    compute: float
    sync: float


class Mixture:
    """Jobs of some profiles on the same GPUs, made by an `Interleaving` (equal mixtures are the same object).

    Attributes:
        profiles: Sorted numbers of the profiles, one per job.
        cycle: Time in which every job advances one iteration.
        rate: 1 ÷ cycle.
        throughput: Sum of the jobs' times alone ÷ cycle: at 1.2, sharing does 1.2 times the work of taking turns.
    """

    __slots__ = ("cycle", "grown", "profiles", "rate", "reduced", "replaced", "throughput")

    def __init__(self, profiles: tuple[int, ...], cycle: float, alone: float) -> None:
        self.profiles = profiles
        self.cycle = cycle
        self.rate = 1.0 / cycle
        self.throughput = alone / cycle
        # Filled by Interleaving as they are asked for; None where the jobs had better take turns.
        self.grown: dict[int, Mixture | None] = {}
        self.reduced: dict[int, Mixture | None] = {}
        self.replaced: dict[tuple[int, int], Mixture | None] = {}


class Interleaving:
    """Cycles of all mixtures, each computed once.

    Args:
        factors: Measured ÷ modelled cycle for one, two … jobs; its length is the largest number that may share.

    Raises:
        ValueError: If there is no factor, more than four, or one that is not positive.

    Example:
        >>> model = Interleaving()
        >>> a, b = model.number(Profile(490, 446, 8, 0)), model.number(Profile(426, 0.6, 410, 0))
        >>> round(model.mixture([a, b]).throughput, 2)
        1.56
    """

    def __init__(self, factors: Sequence[float] = MEASURED_FACTORS) -> None:
        if not 1 <= len(factors) <= SLOTS or not all(math.isfinite(f) and f > 0 for f in factors):
            raise ValueError(f"factors is {tuple(factors)!r}: give one to four positive numbers.")
        self.factors = tuple(factors)
        self._profiles: list[Profile] = []
        self._numbers: dict[Profile, int] = {}
        self._mixtures: dict[tuple[int, ...], Mixture] = {}

    @property
    def largest(self) -> int:
        """The largest number of jobs that may share."""
        return len(self.factors)

    def number(self, profile: Profile) -> int:
        """The number by which mixtures name this profile.

        Raises:
            ValueError: If the iteration takes no time, or a stage a negative one.
        """
        found = self._numbers.get(profile)
        if found is not None:
            return found
        if not (math.isfinite(profile.iteration) and profile.iteration > 0):
            raise ValueError(f"iteration is {profile.iteration!r}: give the time of one iteration, above 0.")
        if not all(math.isfinite(stage) and stage >= 0 for stage in profile[1:]):
            raise ValueError(f"stages are {profile[1:]!r}: give three times of at least 0.")
        self._numbers[profile] = len(self._profiles)
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def alone(self, number: int) -> float:
        """Time of one iteration of a job that has its GPUs for itself."""
        return self._profiles[number].iteration * self.factors[0]

    def mixture(self, numbers: Sequence[int]) -> Mixture:
        """The mixture of one to four jobs, given by their profiles' numbers in any order.

        Raises:
            ValueError: If there are too many or none.
        """
        key = tuple(sorted(numbers))
        found = self._mixtures.get(key)
        if found is None:
            if not 1 <= len(key) <= self.largest:
                raise ValueError(f"numbers is {key!r}: give one to {self.largest} profiles.")
            profiles = [self._profiles[number] for number in key]
            modelled = profiles[0].iteration if len(key) == 1 else modelled_cycle(profiles)
            cycle = modelled * self.factors[len(key) - 1]
            if cycle <= 0:  # jobs without any stage time: nothing to interleave, so they take turns
                cycle = math.fsum(self.alone(number) for number in key)
            found = Mixture(key, cycle, math.fsum(self.alone(number) for number in key))
            self._mixtures[key] = found
        return found

    def grown(self, mixture: Mixture, number: int) -> Mixture | None:
        """The mixture with one more job; None where that is too many or slower than taking turns."""
        try:
            return mixture.grown[number]
        except KeyError:
            full = len(mixture.profiles) >= self.largest
            result = mixture.grown[number] = None if full else self._worthwhile((*mixture.profiles, number))
            return result

    def reduced(self, mixture: Mixture, number: int) -> Mixture | None:
        """The mixture with one job less; None where none is left or the rest is slower than taking turns."""
        try:
            return mixture.reduced[number]
        except KeyError:
            rest = list(mixture.profiles)
            rest.remove(number)
            result = mixture.reduced[number] = self._worthwhile(tuple(rest)) if rest else None
            return result

    def replaced(self, mixture: Mixture, leaves: int, joins: int) -> Mixture | None:
        """The mixture with one job in place of another; None where that is slower than taking turns."""
        try:
            return mixture.replaced[leaves, joins]
        except KeyError:
            rest = list(mixture.profiles)
            rest[rest.index(leaves)] = joins
            result = mixture.replaced[leaves, joins] = self._worthwhile(tuple(rest))
            return result

    def _worthwhile(self, numbers: tuple[int, ...]) -> Mixture | None:
        mixture = self.mixture(numbers)
        return mixture if len(numbers) == 1 or mixture.throughput >= 1 else None


def modelled_cycle(profiles: Sequence[Profile]) -> float:
    """Cycle of two to four jobs before measured factors: the rotation in its best order or, for two, alternating.

    Raises:
        ValueError: If there are fewer than two or more than four.
    """
    if not 2 <= len(profiles) <= SLOTS:
        raise ValueError(f"profiles holds {len(profiles)}: give two to four.")
    best = min(_rotation(order) for order in itertools.permutations(profiles))
    if len(profiles) == 2:
        a, b = profiles
        best = min(best, max(a.load, b.compute + b.sync) + max(b.load, a.compute + a.sync))
    return best


def _rotation(order: Sequence[Profile]) -> float:
    """Period of the rotation: in each slot one job synchronises, the next computes, the one after it loads.

    A job has two slots for loading, so two jobs may load at once. Jobs missing from the four slots leave them idle.
    """
    ends = [0.0]
    for slot in range(SLOTS * _ROUNDS):
        syncs, computes, loads = ((slot + ahead) % SLOTS for ahead in (1, 2, 3))
        end = 0.0
        if syncs < len(order):
            end = max(end, ends[slot] + order[syncs].sync)
        if computes < len(order):
            end = max(end, ends[slot] + order[computes].compute)
        if slot > 0 and loads < len(order):
            end = max(end, ends[slot - 1] + order[loads].load)
        ends.append(end)
        if slot >= SLOTS:
            period, before = end - ends[slot - 3], ends[slot] - ends[slot - 4]
            if period > 0 and math.isclose(period, before, rel_tol=_AGREEMENT):
                return period
    return ends[-1] - ends[-1 - SLOTS]
