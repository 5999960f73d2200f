"""Sizes as people write them, and as people read them. Bytes are ``int``, seconds are ``float``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

_FACTORS = {
    "": 1, "b": 1,
    "k": 1024, "kb": 1000, "kib": 1024,
    "m": 1024**2, "mb": 1000**2, "mib": 1024**2,
    "g": 1024**3, "gb": 1000**3, "gib": 1024**3,
    "t": 1024**4, "tb": 1000**4, "tib": 1024**4,
}  # fmt: skip
_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BOUND = re.compile(r"\s*(>=|<=|==|>|<)\s*(\d{1,3})(?:\.(\d{1,3}))?\s*")
_DURATION = re.compile(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*([a-zA-Z]*)\s*", re.ASCII)
_SIZE = re.compile(r"^\s*(\d{1,30}(?:\.\d{1,30})?)\s*([a-zA-Z]*)\s*$", re.ASCII)


def shown(value: object, most: int = 80) -> str:
    """A value as an error shows it: as Python writes it, and cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than some thousand digits
        text = "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}…"


def plural(count: float, noun: str) -> str:
    """``plural(1, "row") == "1 row"``, ``plural(2, "row") == "2 rows"``."""
    number = f"{count:g}" if isinstance(count, float) else f"{count}"
    return f"{number} {noun}{'' if count == 1 else 's'}"


def parse_bytes(value: str | int, *, field: str = "size") -> int:
    """Read a size such as ``"6GiB"``, ``"500 MB"`` or ``4096``.

    Args:
        value: A count of bytes, or a number with a unit (kB, MB, GB, TB decimal; KiB ... TiB, or one letter, binary).
        field: The name that an error message calls the value by.

    Returns:
        Bytes, more than zero.

    Raises:
        ValueError: The text is no size, or the size is not positive. The message names field, value and remedy.

    Example:
        >>> parse_bytes("1.5GiB")
        1610612736
    """
    match = _SIZE.match(str(value)) if not isinstance(value, bool) else None
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{field}={shown(value)} is not a size: write a number and a unit, such as 6GiB or 500MB.")
    size = int(Fraction(match.group(1)) * factor)  # exact, however large
    if size <= 0:
        raise ValueError(f"{field}={shown(value)} must be more than zero bytes.")
    return size


def parse_bounds(text: str) -> tuple[tuple[str, int, int], ...]:
    """Read bounds of a version with a major and a minor number, such as a compute capability's.

    Returns:
        Of each bound, (comparison, major, minor).

    Raises:
        ValueError: The text is nothing of that kind.

    Example:
        >>> parse_bounds(">=7.5,<9")
        (('>=', 7, 5), ('<', 9, 0))
    """
    found = [_BOUND.fullmatch(part) for part in text.split(",")]
    if not all(found):
        raise ValueError("bounds are needed")
    return tuple((one[1], int(one[2]), int(one[3] or 0)) for one in found if one)


def parse_seconds(value: str | float, *, field: str = "time") -> float:
    """Read a length of time such as ``"2h"``, ``"1h 30min"``, ``"45 s"`` or ``90``.

    Args:
        value: A count of seconds, or numbers with units: s, min (or m), h, d.
        field: The name that an error message calls the value by.

    Returns:
        Seconds, more than zero.

    Raises:
        ValueError: The text is no length of time, or it is not positive. The message names field, value and remedy.

    Example:
        >>> parse_seconds("1h 30min")
        5400.0
    """
    text, at, total = str(value).strip(), 0, 0.0
    parts = list(_DURATION.finditer(text)) if not isinstance(value, bool) else []
    for part in parts:
        factor = _SECONDS.get(part.group(2).lower())
        if factor is None or part.start() != at:
            break
        total, at = total + float(part.group(1)) * factor, part.end()
    if not parts or at != len(text):
        raise ValueError(f"{field}={shown(value)} is no length of time: write numbers and units, such as 2h or 45min.")
    if total <= 0.0:
        raise ValueError(f"{field}={shown(value)} must be more than zero seconds.")
    return total


def format_bytes(size: float) -> str:
    """A size for people: ``format_bytes(6 * 1024**3) == "6 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or size == int(size) else f"{size:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """A duration for people: ``0.3 s``, ``42 s``, ``3 min 10 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 90:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def check_price(field: str, value: float | Mapping[str, float] | None) -> None:
    """Look at a price, or at several by name.

    Raises:
        ValueError: One is no price.
    """
    prices = value if isinstance(value, Mapping) else {"": value or 0.0}
    for name, price in prices.items():
        if not 0 <= price < math.inf:
            where = f"{field}[{name!r}]" if name else field
            raise ValueError(f"{where}={price!r} is no price: give a number from 0 on, such as 2.5.")
