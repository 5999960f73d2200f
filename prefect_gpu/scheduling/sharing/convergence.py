"""Is a run still learning fast, and where should one that is not go? SpeCon, Algorithms 1 and 2, on plain numbers."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

INTERVAL_S = 30.0
"""Seconds between two looks at a run's loss."""

ALPHA = 0.01
"""Threshold of growth, a fraction."""

WEIGHTS = (2.0, 1.5, 1.0)
"""What a progressing, a watched and a converged job weigh in a worker's score (§VI-A)."""

SETTLE_S = INTERVAL_S
"""A run that was moved to even out is not moved so again within these seconds."""


class Category(enum.Enum):
    """How fast a run's loss still moves (§V-A)."""

    PROGRESSING = "PC"
    WATCHING = "WC"
    CONVERGED = "CC"


STEPS = {category: step for step, category in enumerate(Category)}
_STEP_DOWN = {
    Category.PROGRESSING: Category.WATCHING,
    Category.WATCHING: Category.CONVERGED,
    Category.CONVERGED: Category.CONVERGED,
}


class GrowthWatch:
    """Algorithm 1 for one run: from the values it reports to its category.

    Growth G is the change of the value from one interval to the next, as a fraction of the range that the run has
    covered so far, but at least of a tenth of its largest magnitude. An interval's value is the mean of what was
    reported in it; an interval without a report is waited out, for the paper's "previous value again" would look like
    convergence in every run that reports once an epoch. A watched job becomes converged, as the paper's text says; the
    printed algorithm moves it to "watching" again.

    Attributes:
        category: The job's category now.
        confirmed: Whether it stayed converged, with less growth still, at the last look.
        growth: Growth in the last interval as a fraction; None before there were two.
        converged_at: Since when it is converged, or None.
        migrated_at: For the caller to set, once Algorithm 2 has decided about the job, whether it moves or stays: that
            happens only once. It is watched no more.
        evened_at: For the caller to set, when the job was moved to even out.
    """

    def __init__(self) -> None:
        self.category = Category.PROGRESSING
        self.confirmed = False
        self.converged_at: float | None = None
        self.migrated_at: float | None = None
        self.evened_at = -math.inf
        self.growth: float | None = None
        self._value: float | None = None
        self._low = math.inf
        self._high = -math.inf
        self._last_at = -math.inf
        self._due_at: float | None = None
        self._sum = 0.0
        self._count = 0

    @property
    def marked_at(self) -> float | None:
        """From when the converged duration counts: the decision of Algorithm 2, else the entry into CC."""
        return self.converged_at if self.migrated_at is None else self.migrated_at

    def observe(self, t_s: float, value: float) -> Category:
        """Take a reported value; once an interval is over, categorise the run anew.

        Values that are not finite, that are older than the last one, or that come after Algorithm 2 has decided change
        nothing.

        Args:
            t_s: When the value was reported, in seconds on any one clock.
            value: Loss, accuracy or whatever else the run improves; any scale, either direction.
        """
        if self.migrated_at is not None or not math.isfinite(value) or not self._last_at <= t_s < math.inf:
            return self.category
        self._last_at = t_s
        self._sum += value
        self._count += 1
        if self._due_at is None:
            self._close(t_s)
            self._due_at = t_s + INTERVAL_S
        elif t_s >= self._due_at:
            self._close(t_s)
            # The grid stays where it is, so that late reports do not stretch the intervals that follow.
            self._due_at += INTERVAL_S * (1 + math.floor((t_s - self._due_at) / INTERVAL_S))
        return self.category

    def asks_reallocation(self, progressing: int, watching: int, least: int = 2) -> bool:
        """Whether the job asks to be moved: it stayed converged, and faster learners sit on its node (line 15).

        Args:
            progressing: |PC| on the job's node.
            watching: |WC| on the job's node.
            least: How many of both it takes; the print says more than one.
        """
        return self.confirmed and self.migrated_at is None and progressing + watching >= least

    def _close(self, now_s: float) -> None:
        value = self._sum / self._count
        self._sum, self._count = 0.0, 0
        previous, self._value = self._value, value
        self._low = min(self._low, value)
        self._high = max(self._high, value)
        self.confirmed = False
        if previous is None:
            return
        scale = max(self._high - self._low, 0.1 * max(abs(self._high), abs(self._low)))
        before, growth = self.growth, abs(value - previous) / scale if scale else 0.0
        self.growth = growth
        if growth > ALPHA:
            self.category = Category.PROGRESSING
            self.converged_at = None
        elif growth < ALPHA and before is not None and growth < before:
            self.confirmed = self.category is Category.CONVERGED
            self.category = _STEP_DOWN[self.category]
            if self.category is Category.CONVERGED and self.converged_at is None:
                self.converged_at = now_s


@dataclass(frozen=True)
class Counts:
    """Jobs on a worker by category: |PC|, |WC|, |CC|."""

    progressing: int = 0
    watching: int = 0
    converged: int = 0

    @property
    def score(self) -> float:
        """S_w of Algorithm 2, line 3."""
        pc, wc, cc = WEIGHTS
        return self.progressing * pc + self.watching * wc + self.converged * cc


def choose_host(own: str, counts: Mapping[str, Counts], use: Mapping[str, float]) -> str:
    """Algorithm 2: the worker that should host a converged job, which may be its own.

    Of the workers with the smallest score the job's own wins, else the one with the lowest use, else the first.

    Args:
        own: The worker that the job is on. It counts with the job on it.
        counts: The workers that could take the job, and its own, with their jobs by category.
        use: Current use of each worker, R(w, t), in any one unit.
    """
    least = min(count.score for count in counts.values())
    candidates = [worker for worker, count in counts.items() if count.score == least]
    if own in candidates:
        return own
    return min(candidates, key=lambda worker: use[worker])


@dataclass(frozen=True)
class Watched:
    """A run on a host, for evening out the hosts.

    Attributes:
        marked_at: See :attr:`GrowthWatch.marked_at`; the present, if it has not converged.
        evened_at: When it was last moved to even out, in seconds; long ago, if never.
        movable: Whether it may be moved at all.
    """

    id: str
    host: str
    category: Category
    marked_at: float
    evened_at: float = -math.inf
    movable: bool = True


@dataclass(frozen=True)
class Move:
    """A run to save on one host and to restore on another."""

    job: str
    source: str
    target: str
    reason: str


def level(hosts: Sequence[str], runs: Sequence[Watched], now_s: float) -> list[Move]:
    """Ours: even out the hosts at once, until none has two runs fewer than another that could give one.

    Those that learn least move first. Each moves at most once, and not within :data:`SETTLE_S` of the last time.

    Args:
        hosts: All of them, idle ones included.
        runs: Every run on them.
        now_s: The present, on the clock of ``evened_at``.
    """
    load = {host: sum(run.host == host for run in runs) for host in hosts}
    left = [run for run in runs if run.movable and now_s - run.evened_at >= SETTLE_S]
    left.sort(key=lambda run: (-STEPS[run.category], run.id))
    moves: list[Move] = []
    while left:
        target = min(load, key=lambda host: load[host])
        most = max(load[run.host] for run in left)
        if most < load[target] + 2:
            break
        chosen = next(run for run in left if load[run.host] == most)
        left.remove(chosen)
        reason = f"{target} has fewer runs than {chosen.host}, where no run learns less than it"
        moves.append(Move(chosen.id, chosen.host, target, reason))
        load[chosen.host] -= 1
        load[target] += 1
    return moves
