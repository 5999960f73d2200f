"""How fast one run was on each number of devices that it has had: F-scheduling's f_M(N) = T as it was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

FIXED = 0.2  # part of a step on one device that further devices are taken not to shorten, before any run has told
FIXED_APART = 0.3  # likewise, where they are on several nodes
MOST_DEVICES = 10_000  # of one node; whoever says more is wrong
LEAST_STEPS = 5  # between two reports, from which on they say how fast the run is


def place_of(devices: int, nodes: int, batch_size: int | None = None) -> str:
    """What measurements on so many devices of so many nodes are kept under; those on one node as version 1 has it.

    Args:
        batch_size: Samples of the batch that the pool has chosen: what is kept then counts batches, not progress.

    Example:
        >>> place_of(4, 1), place_of(4, 2), place_of(4, 2, 512)
        ('4', '4/2', '4/2@512')
    """
    place = str(devices) if nodes <= 1 else f"{devices}/{nodes}"
    return place if batch_size is None else f"{place}@{batch_size}"


class Measured:
    """Follows one run over its launches; each may have another number of devices.

    The time up to a launch's first report is left out: its first steps are slow (compilers, caches).

    Args:
        kept: Where it keeps what it has measured: by :func:`place_of`, [steps, seconds]. It is changed in place; what
            an earlier launch has left there counts on.

    Example:
        >>> measured = Measured({})
        >>> measured.begins(2)
        >>> for step in (1, 11, 21):
        ...     measured.reports(step, at=100.0 + step / 4)
        >>> measured.kept
        {'2': [20.0, 5.0]}
    """

    def __init__(self, kept: dict[str, list[float]]) -> None:
        self.kept = kept
        self._place = self._with_batch = ""
        self._last: tuple[int, int, float] | None = None  # (steps, batches, when), of the last report of this launch

    def begins(self, devices: int, nodes: int = 1, batch_size: int | None = None) -> None:
        """A launch begins to train on so many devices, or begins again.

        Args:
            batch_size: Samples of the batch that the pool has chosen for it; None: it chooses none.
        """
        self._place, self._last = place_of(devices, nodes) if devices > 0 else "", None
        self._with_batch = place_of(devices, nodes, batch_size) if self._place and batch_size else ""

    def reports(self, step: int, at: float, batches: int = 0) -> None:
        """So many steps were done at this time in Unix seconds. Whoever goes back is followed from there on.

        Args:
            batches: Done in this launch, where the pool chooses them.
        """
        if self._last is not None and self._place:
            done, batches_done, before = self._last
            if step == done:
                return  # it may have evaluated: the time counts towards the next step
            if step > done and at > before:
                self._add(self._place, step - done, at - before)
                if self._with_batch and batches > batches_done:
                    self._add(self._with_batch, batches - batches_done, at - before)
        self._last = step, batches, at

    def _add(self, place: str, steps: int, seconds: float) -> None:
        total = self.kept.setdefault(place, [0.0, 0.0])
        total[0] += steps
        total[1] += seconds


def speeds_of(kept: object) -> dict[int, float]:
    """Steps per second by number of devices of one node, fewest first; see :func:`apart_of`."""
    return {devices: speed for (devices, apart), speed in _speeds(kept).items() if not apart}


def apart_of(kept: object) -> dict[int, float]:
    """The same on several nodes. What is absurd, or rests on a few steps only, is left out.

    Args:
        kept: As :class:`Measured` keeps it; it may come from a database, and so be anything.
    """
    return {devices: speed for (devices, apart), speed in _speeds(kept).items() if apart}


def _speeds(kept: object) -> dict[tuple[int, bool], float]:
    """By number of devices, and whether they are on several nodes."""
    totals: dict[tuple[int, bool], tuple[float, float]] = {}
    for place, total in kept.items() if isinstance(kept, Mapping) else ():
        if not (isinstance(place, str) and isinstance(total, Sequence) and len(total) == 2):
            continue
        devices, apart, nodes = place.partition("/")
        if not devices.isdecimal() or (apart and not nodes.isdecimal()):
            continue
        steps, seconds = total
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in total)
        if not numbers or not LEAST_STEPS <= steps < math.inf or not 0 < seconds < math.inf:
            continue
        if 0 < steps / seconds < math.inf and 1 <= int(devices) <= MOST_DEVICES:
            before = totals.get((int(devices), bool(apart)), (0.0, 0.0))
            totals[int(devices), bool(apart)] = before[0] + steps, before[1] + seconds
    return {key: steps / seconds for key, (steps, seconds) in sorted(totals.items())}


def assumed(max_gpus: int, fixed: float = FIXED) -> tuple[float, ...]:
    """f_M of a program that nothing is known of, relative to one device: Amdahl's law with :data:`FIXED`.

    The thesis (§3) does not say what f is before anything was tried. This is cautious: 0.83 of linear on two devices,
    0.62 on four; and one try shows what is true.
    """
    return tuple(count / (1.0 + fixed * (count - 1)) for count in range(1, max_gpus + 1))


def both(
    learned: Sequence[float], apart: Sequence[float], own: Mapping[int, float], own_apart: Mapping[int, float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """f_M of a run that trains, on one node and on several, from what was learned of others and what it measured.

    What it measured on several nodes says by what was learned what it would do on one, and the other way round.

    Args:
        learned: On one node; see :func:`corrected`.
        apart: On several nodes.
        own, own_apart: Of the run itself, likewise.
    """
    ratio = [many / one if one > 0 else 1.0 for one, many in zip(learned, apart, strict=True)]
    known = range(1, len(ratio) + 1)
    near = {n: rate / ratio[n - 1] for n, rate in own_apart.items() if n in known and ratio[n - 1] > 0}
    together = corrected(learned, {**near, **own})
    far = [one * part for one, part in zip(together, ratio, strict=True)]
    return together, corrected(far, {**{n: rate for n, rate in own.items() if n == 1}, **own_apart})


def corrected(learned: Sequence[float], own: Mapping[int, float]) -> tuple[float, ...]:
    """f_M of a run that trains: what was learned from others, moved to where the run itself was measured.

    On the numbers of devices that it has had, its own speed counts. Between two of them, what was learned is scaled by
    a factor between theirs; beyond them, by the nearest's. And nothing is promised beyond what :func:`bounded` allows.

    Args:
        learned: Steps per second on 1, 2, 3 … devices; 0 where it cannot run.
        own: Steps per second of the run itself, by number of devices.
    """
    at = [count for count in sorted(own) if 1 <= count <= len(learned)]
    known = [(math.log(count), math.log(own[count] / learned[count - 1])) for count in at if learned[count - 1] > 0]
    curve = [rate * math.exp(_between(known, math.log(count))) for count, rate in enumerate(learned, 1)]
    for count in at:
        curve[count - 1] = own[count]
    return bounded(curve, {count: own[count] for count in at})


def bounded(curve: Sequence[float], measured: Mapping[int, float]) -> tuple[float, ...]:
    """f_M without a promise that the measurements speak against. Listing 1 (§4.2) then never grows a run for it.

    From a number of devices on that was measured to be no faster than a smaller one, nothing is faster than there.
    Beyond the largest that was measured, a further device adds no more than the last ones did.

    Args:
        curve: Steps per second on 1, 2, 3 … devices.
        measured: Steps per second by number of devices.
    """
    found = list(curve)
    counts = sorted(measured)
    for fewer, more in pairwise(counts):
        slope = max(0.0, (measured[more] - measured[fewer]) / (more - fewer))
        last = more == counts[-1]
        for count in range(more, len(found) + 1) if slope == 0.0 or last else ():
            found[count - 1] = min(found[count - 1], measured[more] + slope * (count - more))
    return tuple(found)


def _between(known: Sequence[tuple[float, float]], at: float) -> float:
    """A factor's logarithm, linear between those that are known, and constant outside; 0 if none is."""
    if not known:
        return 0.0
    if at <= known[0][0]:
        return known[0][1]
    for (low, before), (high, after) in pairwise(known):
        if at <= high:
            return before + (after - before) * (at - low) / (high - low)
    return known[-1][1]
