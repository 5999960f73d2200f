"""How long a run of unknown length is expected to go on, from those of its width that have ended here.

Of those that had come as far, how many ended until a later moment, and how long did all of them run until then? The
time for each that ended, for the moment at which it is least, is what the run is expected to need: the inverse of
Gittins' index. It is seldom the mean: where most end at once and a few go on for days, that of a newcomer is short.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise

from prefect_gpu.scheduling.model.jobs import Job

FIRST_S, RATIO, LIMITS = 30.0, 1.5, 42
"""The first limit of age; each step between two is longer than the one before by so much; the last lies at 47 years."""

PRIOR_HAZARD = 0.3
"""Which part ends from one limit to the next, at least, before anything has been seen: the older, the longer yet."""

PRIOR_RUNS, WIDTH_RUNS = 10.0, 5.0
"""As many runs' worth as that weighs against all, and all against those of one width."""

_FEW = 1e-3
_FIRST_OVERRUN_S, _FACTOR = 60.0, 4.0
_RIGHT_RUNS = 5.0  # as many runs whose estimate was right weigh against the errors that were seen
_LEAST_ERROR, _MOST_ERROR = 0.01, 0.6  # below, estimates are taken as they are; above, a program's tell nothing
_OVERRUN_FACTOR = 1.5  # between two limits beyond an estimate that may be wrong, the same is expected
_FAR_OUT = 6.0  # deviations, from which on what is left follows from the tail's steepness alone
_NOTHING = 1e-9  # of an estimate: as good as not begun
_ROOT_2 = math.sqrt(2.0)
_RENEWED = 1.05  # a table is made anew when so many times as many have ended

_EDGES = [FIRST_S * (RATIO**step - 1) / (RATIO - 1) for step in range(LIMITS + 1)]


def interval(age_s: float) -> int:
    """Between which limits an age lies."""
    return min(int(math.log(age_s * (RATIO - 1) / FIRST_S + 1, RATIO) + 1e-9), LIMITS - 1)


class Lengths:
    """Counts runs that have ended, by width and age, and how wrong their estimates were.

    Attributes:
        error: Root of the mean square of the logarithm of truth over estimate; 0: estimates have been right.
        misjudged: Programs whose estimates have been so wrong that their runs' widths and ages say more.
    """

    def __init__(self) -> None:
        self._ended: dict[tuple[int, int], int] = {}
        self._count = 0
        self._total_s = 0.0
        self._tables: dict[int, tuple[int, list[tuple[float, float]]]] = {}
        self._estimated = 0
        self._squares = 0.0
        self._of_programs: dict[str, tuple[int, float]] = {}  # runs, and the squares of the errors of their estimates
        self.error = 0.0
        self.misjudged: set[str] = set()

    def ended(self, devices: int, age_s: float) -> None:
        """A run on so many devices has ended, after it held them for so many seconds."""
        key = ((devices - 1).bit_length(), interval(age_s))
        self._ended[key] = self._ended.get(key, 0) + 1
        self._count += 1
        self._total_s += age_s

    def came_true(self, estimate_s: float, service_s: float, program: str = "") -> None:
        """A run of a program has completed, of which an estimate said how many seconds of service it needs."""
        if estimate_s <= 0.0 or service_s <= 0.0:
            return
        square = math.log(service_s / estimate_s) ** 2
        self._estimated += 1
        self._squares += square
        self.error = math.sqrt(self._squares / (self._estimated + _RIGHT_RUNS))
        runs, squares = self._of_programs.get(program, (0, 0.0))
        runs, squares = self._of_programs[program] = runs + 1, squares + square
        if runs >= _RIGHT_RUNS and squares >= _MOST_ERROR**2 * (runs + _RIGHT_RUNS):
            self.misjudged.add(program)
        else:
            self.misjudged.discard(program)

    def left_s(self, estimate_s: float, done_s: float) -> float:
        """Seconds that a run is expected to need yet, if its estimate is as wrong as those of others have been.

        The truth is the estimate times a factor whose logarithm is normal with deviation ``error``; a run that has come
        so far needs more than that. So one that is about to end by its estimate is not as good as over.
        """
        error = self.error
        if done_s > estimate_s > 0.0:
            done_s = estimate_s * _OVERRUN_FACTOR ** math.floor(math.log(done_s / estimate_s, _OVERRUN_FACTOR) + 1e-9)
        if done_s <= estimate_s * _NOTHING:
            return estimate_s * math.exp(error * error / 2)
        at = math.log(done_s / estimate_s) / error
        if at > _FAR_OUT:
            return done_s * error / at
        mean_s = estimate_s * math.exp(error * error / 2) * math.erfc((at - error) / _ROOT_2) / math.erfc(at / _ROOT_2)
        return max(0.0, mean_s - done_s)

    def mean_s(self) -> float:
        """Seconds that those that have ended held their devices, in the mean; 0 if none has."""
        return self._total_s / self._count if self._count else 0.0

    def expected_s(self, devices: int, age_s: float) -> float:
        """Seconds that a run on so many devices is expected to need yet; the same between two limits of its age."""
        return self._of(devices, age_s)[0]

    def mean_left_s(self, devices: int, age_s: float) -> float:
        """Seconds that such runs need yet in the mean: more than expected, where most end soon and a few go on."""
        return self._of(devices, age_s)[1]

    def _of(self, devices: int, age_s: float) -> tuple[float, float]:
        width = (devices - 1).bit_length()
        made, table = self._tables.get(width, (-1, []))
        if made < 0 or self._count > made * _RENEWED:
            table = self._table(width)
            self._tables[width] = (self._count, table)
        return table[interval(age_s)]

    def _prior(self) -> Iterator[float]:
        """Which part ends from one limit to the next, where few have come so far.

        No run is expected to go on for much longer than the mean of those that ended: beyond, they end at the rate at
        which runs of that mean length do whose past says nothing of their future.
        """
        mean_s = self.mean_s()
        for first, last in pairwise(_EDGES):
            yield max(PRIOR_HAZARD, 1.0 - math.exp((first - last) / mean_s)) if mean_s else PRIOR_HAZARD

    def _table(self, width: int) -> list[tuple[float, float]]:
        own, everyone = [0.0] * LIMITS, [0.0] * LIMITS
        for (at, step), count in self._ended.items():
            everyone[step] += count
            if at == width:
                own[step] += count
        hazards = []
        columns = zip(self._prior(), own, _from_the_end(own), everyone, _from_the_end(everyone), strict=True)
        for prior, mine, reached, all_, all_reached in columns:
            common = (all_ + PRIOR_RUNS * prior) / (all_reached + PRIOR_RUNS)
            hazards.append((mine + WIDTH_RUNS * common) / (reached + WIDTH_RUNS))
        table = []
        for first in range(LIMITS):
            alive, spent, best = 1.0, 0.0, math.inf
            for step in range(first, LIMITS):
                length = _EDGES[step + 1] - _EDGES[step]
                ends = alive * hazards[step]
                spent += length * (alive - ends / 2)
                alive -= ends
                best = min(best, spent / (1 - alive))
                if alive < _FEW:
                    break
            table.append((best, spent / (1 - alive)))
        return table


def _from_the_end(counts: list[float]) -> list[float]:
    return list(accumulate(reversed(counts)))[::-1]


def expected_left(job: Job, now: float, lengths: Lengths, *, as_told: bool = False) -> tuple[float, bool]:
    """Seconds that a job is expected to train yet, and whether an estimate that still holds says so.

    Of a job without an estimate, what those that ended here say; and of one whose program's estimates have been wrong
    by a factor of two and more (:attr:`Lengths.misjudged`). Where estimates have been wrong by a factor of some
    spread, what such errors leave to be expected of one that has come as far (:meth:`Lengths.left_s`). Else, of one
    that has outlived its estimate, a longer past means a longer future. All go by steps that grow, so that equals do
    not take turns.

    Args:
        as_told: Believe estimates, however wrong those of the program have been.
    """
    service_s = job.estimate.service_s
    if service_s is None or (not as_told and job.request.kind in lengths.misjudged):
        return lengths.expected_s(max(1, job.request.total_gpus), job.attained(now)), False
    done_s = job.done(now)
    left = service_s - done_s
    if _LEAST_ERROR < lengths.error < _MOST_ERROR and service_s > 0.0:
        return lengths.left_s(service_s, done_s), left >= 0.0
    return (left, True) if left >= 0.0 else (_step(-left, _FIRST_OVERRUN_S), False)


def next_step_s(job: Job, now: float, lengths: Lengths) -> float:
    """Seconds until a running job, whose :func:`expected_left` is not certain, comes to the next step of its age."""
    service_s = job.estimate.service_s
    if service_s is None or job.request.kind in lengths.misjudged:
        age_s = job.attained(now)
        return _EDGES[interval(age_s) + 1] - age_s
    over_s = job.done(now) - service_s
    if _LEAST_ERROR < lengths.error < _MOST_ERROR and service_s > 0.0:
        steps = math.floor(math.log(1.0 + over_s / service_s, _OVERRUN_FACTOR) + 1e-9)
        return service_s * _OVERRUN_FACTOR ** (steps + 1) - over_s - service_s
    return max(_FIRST_OVERRUN_S, _step(over_s, _FIRST_OVERRUN_S) * _FACTOR) - over_s


def _step(at: float, first: float) -> float:
    """The last of the limits ``first``, ``first`` × 4, … that was reached; 0 if none was."""
    if at < first:
        return 0.0
    return first * _FACTOR ** int(math.log(at / first, _FACTOR) + 1e-9)
