"""What a run may report: known fields, numbers within their ranges, texts and tables of bounded size.

The process of a run is its user's. What comes from it is looked at once, here, before anybody uses it. A field that is
unknown, or makes no sense, is left out, and the rest of the report counts: another version of the run side may say more
than this worker knows of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from prefect_gpu.training import protocol

_MOST_COUNT = 2**53  # every number up to it is exact as a float, too
_MOST_BYTES = 2**60
_LARGEST = 1e100  # of what may be any number; beyond it, squares and sums would not be finite
_LONGEST_NAME, _LONGEST_TEXT = 200, 2_000
_MOST_METRICS = 100
_MOST_FEATURES, _FEATURES_LENGTH = 1_000, 32_768  # names, and characters of names and values together
_MOST_POINTS = 1_024  # of the loss curve in one report
_FURTHEST_S = 30 * 86_400.0  # a run may have been cut off for long; a time further from the worker's is none

Check = Callable[[Any], Any]
"""Gives the value as it may be used, or None: it is left out."""


def checked(kind: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """A report with all that is known and makes sense in it; None if there is nothing in it that the worker knows.

    Example:
        >>> checked("usage", {"rss_bytes": 1e999, "cpu_fraction": 1.5, "colour": "red"})
        {'cpu_fraction': 1.5}
    """
    fields = _FIELDS.get(kind)
    if fields is None:
        return None
    found = {name: check(data[name]) for name, check in fields.items() if name in data}
    found = {name: value for name, value in found.items() if value is not None}
    return None if kind == protocol.PHASE and "phase" not in found else found


def checked_time(at: float, now: float) -> float:
    """The time of a report in Unix seconds; the worker's own if the run's clock tells one that cannot be."""
    return at if abs(at - now) <= _FURTHEST_S else now


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_COUNT else None


def _number(least: float, most: float) -> Check:
    """A number within a range; one outside is no measurement."""

    def check(value: Any) -> float | None:
        known = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
        return value if known else None  # NaN is in no range

    return check


def _any_number(value: Any) -> float | None:
    """Any finite number; a very large one is taken as less large."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if not -_LARGEST <= value <= _LARGEST:
        return math.copysign(_LARGEST, 1 if value > 0 else -1)
    return value if abs(value) <= _MOST_COUNT else float(value)  # whole numbers that any JSON reader can hold


def _text(value: Any) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _phase(value: Any) -> str | None:
    return value if isinstance(value, str) and value in protocol.PHASES else None


def _features(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    found: dict[str, Any] = {}
    left = _FEATURES_LENGTH
    for name, item in value.items():
        checked_item = item if isinstance(item, (bool, str)) else _any_number(item)
        left -= len(name) + len(str(checked_item))
        if left < 0 or len(found) >= _MOST_FEATURES:
            break
        if checked_item is not None:
            found[name] = checked_item
    return found


def _metrics(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    known = ((name, _any_number(item)) for name, item in value.items() if len(name) <= _LONGEST_NAME)
    return dict([pair for pair, _ in zip(known, range(_MOST_METRICS), strict=False)])


def _losses(value: Any) -> list[list[float]] | None:
    if not isinstance(value, list):
        return None
    points = [(_count(one[0]), _any_number(one[1])) for one in value if isinstance(one, list) and len(one) == 2]
    return [[step, loss] for step, loss in points if step is not None and loss is not None][-_MOST_POINTS:]


_BYTES, _SHARE, _RATE = _number(0, _MOST_BYTES), _number(0, 1), _number(0, 1e15)
_FIELDS: dict[str, dict[str, Check]] = {
    protocol.PHASE: {
        "phase": _phase,
        "step": _count,
        "steps": _count,
        "batch_size": _count,
        "features": _features,
        "waiting": _flag,
    },
    protocol.PROGRESS: {
        "step": _count,
        "steps": _count,
        "loss": _any_number,
        "metrics": _metrics,
        "losses": _losses,
        "steps_per_s": _RATE,
        "nonfinite_step": _count,
        "batches": _count,
        "noise_scale": _number(0, 1e15),
    },
    protocol.USAGE: {
        "cpu_fraction": _number(0, 1e6),
        "rss_bytes": _BYTES,
        "rss_peak_bytes": _BYTES,
        "net_bytes_per_s": _RATE,
        "device_util": _SHARE,
        "device_memory_bytes": _BYTES,
    },
    protocol.OUT_OF_MEMORY: {"error": _text},
    protocol.CHECKPOINT: {
        "step": _count,
        "path": _text,
        "bytes": _BYTES,
        "seconds": _RATE,
        "error": _text,
        "last": _flag,
        "unasked": _flag,
    },
}
