"""Which jobs should share a group of nodes? All compositions are looked at, and valued by what work costs at best.

A *class* is a model on so many devices. A *group* is as many nodes as the narrowest job is spread over. A *composition*
is what runs on one group at a time: so many jobs of each class. On plain arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST = 20_000  # compositions; those of 18 classes on 16 devices are 17,065
_TAKEN_IN = 100  # compositions at a time
_TOLERANCE = 1e-7  # of the solver
_SHORTLIST = 500  # compositions that are valued beside other groups and wide jobs
_IMPOSSIBLE = -1e9
_ROUNDING = 1e-9

DECIMALS = 9
"""Processors add up differently beyond these; what is equal in them is equal."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class TooMany(ValueError):
    """There are more compositions than one decision can look at."""


class Compositions:
    """All ways to fill a group, wholly or in part.

    Args:
        sizes: Devices of a job of each class.
        ratios: ``ratios[a, b]``: part of its speed alone that is left to a job of class a beside one of class b.
        capacity: Devices of a group.

    Attributes:
        members: Classes of the jobs of each composition, by row; padded with the number of classes.
        ranks: Which one of the jobs of its class each member is: 0 for the first.
        ratios: Ratio of each member among the others; 1 where there is none.
        rates: Sum of the ratios of each class, by composition.
        starts: ``starts[u]:starts[u - 1]`` are the rows that use u devices; the fullest come first.

    Raises:
        TooMany: There are more than :data:`MOST`.
        ValueError: A size is not positive.
    """

    def __init__(self, sizes: Sequence[int], ratios: Floats, capacity: int) -> None:
        if any(size <= 0 for size in sizes):
            raise ValueError(f"sizes is {list(sizes)}: give the devices of each class, above 0")
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self.capacity = capacity
        self._none = len(sizes)
        most = max(1, capacity // min(sizes, default=capacity + 1))
        members, ranks, found, used = self._grow(ratios, most)
        order = np.argsort(-used, kind="stable")
        self.members, self.ranks, self.ratios, self.used = members[order], ranks[order], found[order], used[order]
        self.starts = np.array([int((used > count).sum()) for count in range(capacity + 1)])
        rates = np.zeros((len(order), self._none + 1))
        np.add.at(rates, (np.arange(len(order))[:, None], self.members), self.ratios)
        self.rates = rates[:, : self._none]

    def _grow(self, truth: Floats, most: int) -> tuple[Ints, Ints, Floats, Ints]:
        """Add one job after the other, of the same class or a later one."""
        none = self._none
        padded = np.ones((none + 1, none + 1))
        padded[:none, :none] = truth
        levels = [(np.full((1, most), none), np.zeros((1, most), np.int64), np.ones((1, most)), np.zeros(1, np.int64))]
        for level in range(most):
            grown = []
            members, ranks, ratios, used = levels[-1]
            last = members[:, level - 1] if level else np.zeros(len(members), np.int64)
            for at, size in enumerate(self.sizes):
                rows = np.flatnonzero((last <= at) & (used + size <= self.capacity))
                if not len(rows):
                    continue
                new, rank, kept = members[rows], ranks[rows], np.minimum(ratios[rows], padded[members[rows], at])
                kept[:, level] = padded[at, new].min(axis=1)
                rank[:, level] = (new == at).sum(axis=1)
                new[:, level] = at
                grown.append((new, rank, kept, used[rows] + size))
            if not grown:
                break
            parts = [np.concatenate(part) for part in zip(*grown, strict=True)]
            levels.append((parts[0], parts[1], parts[2], parts[3]))
            if sum(len(one[3]) for one in levels) > MOST:
                raise TooMany(f"there are more than {MOST:,} compositions of {none} classes on {self.capacity} devices")
        found = [np.concatenate(part) for part in zip(*levels[1:], strict=True)] if len(levels) > 1 else list(levels[0])
        return found[0], found[1], found[2], found[3]

    def prices(self, work_s: Floats) -> Floats:
        """What a second of each class's work costs, in seconds of a group, if all is done in the best company.

        The duals of the linear programme "the least time in which compositions do all the work". It begins with few
        compositions, and takes in those that are worth more than their time at the duals so far. (As in cutting stock;
        Gilmore & Gomory, 1961.)

        Args:
            work_s: Seconds of work left of each class; classes without any cost nothing.
        """
        from scipy.optimize import linprog  # a third of a second, which no other profile should wait for

        active, idle = np.flatnonzero(work_s > 0), np.flatnonzero(work_s <= 0)
        prices = np.zeros(len(work_s))
        if not len(active):
            return prices
        rates = self.rates[np.ix_(np.flatnonzero(~self.rates[:, idle].any(axis=1)), active)]
        work = work_s[active] / work_s.max() * 1e3  # far above the solver's tolerances, whatever there is to do
        looked_at, before = np.unique(rates.argmax(axis=0)), 0
        while len(looked_at) > before:
            before = len(looked_at)
            price = -linprog(np.ones(before), A_ub=-rates[looked_at].T, b_ub=-work).ineqlin.marginals
            values = np.round(rates @ price, DECIMALS)
            dear = np.flatnonzero(values > 1 + _TOLERANCE)
            looked_at = np.union1d(looked_at, dear[np.argsort(-values[dear], kind="stable")[:_TAKEN_IN]])
        prices[active] = np.round(np.maximum(price, 0.0), DECIMALS)
        return prices


class Latest:
    """Makes compositions, and gives those of before again as long as they are asked for: thousands take a while."""

    def __init__(self) -> None:
        self._made: tuple[object, Compositions] | None = None

    def of(self, sizes: Sequence[int], ratios: Floats, capacity: int) -> Compositions:
        """See :class:`Compositions`."""
        asked = (tuple(sizes), ratios.tobytes(), capacity)
        if self._made is None or self._made[0] != asked:
            self._made = (asked, Compositions(sizes, ratios, capacity))
        return self._made[1]


@dataclass(frozen=True)
class Wide:
    """Jobs that may be spread over all groups at once.

    Attributes:
        classes: Those for which it pays.
        speedups: Speed so spread ÷ speed in one group, both alone, by class; of the others, anything.
        beside_wide: Ratio of a job in one group beside a wide one, by both classes.
        of_wide: Ratio of a wide job beside one in a group.
        among: Ratio of a wide job beside another.
    """

    classes: Sequence[int]
    speedups: Floats
    beside_wide: Floats
    of_wide: Floats
    among: Floats


@dataclass(frozen=True)
class Chosen:
    """What is to run.

    Attributes:
        wide: Classes of the jobs that are spread over all groups.
        wide_ratios: Their ratios.
        groups: Classes of the jobs of each group.
        ratios: Their ratios.
        value: What it is worth in all.
    """

    wide: tuple[int, ...]
    wide_ratios: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...]
    ratios: tuple[tuple[float, ...], ...]
    value: float


class Chooser:
    """Chooses what runs on all groups: the largest sum of weight × ratio, less ``cost`` × what everybody loses of its
    speed, one group after the other, with up to ``most_wide`` jobs that are spread over all of them.

    Args:
        compositions: What a group may hold.
        weights: ``weights[class, n]``: worth of a second at full speed of the n-th job of a class; -inf: there is none.
        groups: Number of groups.
        cost: Weight of lost speed, whoever loses it.
        least_ratio: Nobody may be slower than this part of the speed alone.
        wide: Jobs that may be spread over all groups; None: none may.
        most_wide: At most so many of these.
    """

    def __init__(
        self,
        compositions: Compositions,
        weights: Floats,
        groups: int,
        *,
        cost: float,
        least_ratio: float,
        wide: Wide | None = None,
        most_wide: int = 2,
    ) -> None:
        self._all, self._groups = compositions, groups
        self._cost, self._least = cost, least_ratio - _ROUNDING
        self._wide, self._most_wide = wide, most_wide
        count, ranks = weights.shape
        deep = ranks + compositions.members.shape[1] + 1
        self._weights = np.full((count + 1, deep), _IMPOSSIBLE)
        self._weights[:count, :ranks] = np.maximum(weights, _IMPOSSIBLE)
        self._weights[count] = 0.0
        self._shortlists: dict[int, Ints] = {}

    def choose(self) -> Chosen:
        """The best found: without wide jobs, then with one more as long as that is better."""
        best = self._filled(())
        wanted = int((self._all.sizes * (self._weights[:-1] > _IMPOSSIBLE / 2).sum(axis=1)).sum())
        if best is not None and wanted < self._all.capacity * self._groups:
            # There is room for all. Filled one after the other, the first groups would be full and the last ones empty.
            spread = self._filled((), max(-(-wanted // self._groups), int(self._all.sizes.max())))
            best = spread if spread is not None and spread.value > best.value else best
        wide = self._wide
        while best is not None and wide is not None and len(best.wide) < self._most_wide:
            options = [self._filled((*best.wide, at)) for at in wide.classes]
            better = max((one for one in options if one is not None), key=lambda one: one.value, default=None)
            if better is None or better.value <= best.value + _ROUNDING:
                break
            best = better
        assert best is not None  # nothing at all is a choice, too
        return best

    def _filled(self, wide: tuple[int, ...], most: int | None = None) -> Chosen | None:
        """The best groups, of so many devices at most, beside these wide jobs; None if these themselves cannot run."""
        known, sizes = self._wide, self._all.sizes
        room = self._all.capacity * self._groups - int(sizes[list(wide)].sum())
        offsets = np.zeros(len(self._weights), np.int64)
        ratios, weights = [], []
        for at, one in enumerate(wide):
            assert known is not None
            others = [known.among[one, other] for number, other in enumerate(wide) if number != at]
            ratios.append(float(min(others, default=1.0)))
            weights.append(float(self._weights[one, offsets[one]] * known.speedups[one]))
            offsets[one] += 1
        if room < 0 or any(weight < _IMPOSSIBLE / 2 for weight in weights) or min(ratios, default=1.0) < self._least:
            return None
        value = sum(w * r - self._cost * (1 - r) for w, r in zip(weights, ratios, strict=True))
        groups, kept = [], []
        for _ in range(self._groups):
            picked = self._pick(min(room // self._groups, most or room), offsets, wide, ratios, weights)
            if picked is None:
                groups.append(())
                kept.append(())
                continue
            row, worth, found = picked
            value += worth
            members = self._all.members[row]
            real = members[members < len(sizes)]
            np.add.at(offsets, real, 1)
            groups.append(tuple(real.tolist()))
            kept.append(tuple(found[: len(real)].tolist()))
            if known is not None:
                ratios = [min(r, *known.of_wide[one, real]) for one, r in zip(wide, ratios, strict=True)]
        return Chosen(wide, tuple(ratios), tuple(groups), tuple(kept), value)

    def _pick(
        self, room: int, offsets: Ints, wide: Sequence[int], ratios: Sequence[float], weights: Sequence[float]
    ) -> tuple[int, float, Floats] | None:
        """(row, worth, ratios) of the best of the fullest compositions; None if nothing may run."""
        all_, known = self._all, self._wide
        count = len(all_.sizes)
        limit = np.ones(count + 1)
        if wide and known is not None:
            limit[:count] = known.beside_wide[:, list(wide)].min(axis=1)
        for used in range(room, 0, -1):
            every = np.arange(all_.starts[used], all_.starts[used - 1])
            for rows in (self._shortlist(used), every):
                if not len(rows):
                    continue
                members = all_.members[rows]
                kept = np.minimum(all_.ratios[rows], limit[members]) if wide else all_.ratios[rows]
                values = self._values(rows, members, kept, offsets)
                for one, ratio, weight in zip(wide, ratios, weights, strict=True):
                    assert known is not None
                    of_wide = np.append(known.of_wide[one], 1.0)
                    after = np.minimum(of_wide[members].min(axis=1), ratio)
                    values -= (weight + self._cost) * (ratio - after)
                    values[after < self._least] = _IMPOSSIBLE
                best = int(np.argmax(values))
                if values[best] > _IMPOSSIBLE / 10:
                    return int(rows[best]), float(values[best]), kept[best]
        return None

    def _values(self, rows: Ints, members: Ints, kept: Floats, offsets: Ints) -> Floats:
        """Worth of compositions, were it not for wide jobs, if so many jobs of each class run already."""
        depth = self._weights.shape[1] - 1
        worth = self._weights[members, np.minimum(self._all.ranks[rows] + offsets[members], depth)]
        values: Floats = ((worth + self._cost) * kept).sum(axis=1) - self._cost * members.shape[1]
        values[kept.min(axis=1) < self._least] = _IMPOSSIBLE
        return values

    def _shortlist(self, used: int) -> Ints:
        """The best compositions of so many devices, were nobody else there: others can only make them worth less."""
        found = self._shortlists.get(used)
        if found is None:
            rows = np.arange(self._all.starts[used], self._all.starts[used - 1])
            if len(rows) > _SHORTLIST:
                none = np.zeros(len(self._weights), np.int64)
                values = self._values(rows, self._all.members[rows], self._all.ratios[rows], none)
                rows = np.sort(rows[np.argpartition(-values, _SHORTLIST)[:_SHORTLIST]])
            found = self._shortlists[used] = rows
        return found
