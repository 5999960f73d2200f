"""How short a node's memory bandwidth or processor is, from what the kernel counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_ROOT = Path("/")


class PressureMeter:
    """Says how short it has been since the last question, 0 to 1.

    - Where Intel's Memory Bandwidth Monitoring is there and mounted (``/sys/fs/resctrl``), the bytes that all groups
      moved, over the node's bandwidth: the one given, else the most that was seen so far.
    - Else, where the kernel counts pressure stalls (``/proc/pressure/cpu``), the part of the time in which somebody
      waited for a processor. That says nothing of bandwidth.

    Args:
        memory_bps: Bandwidth of the node's main memory, bytes per second; 0 if unknown.
        root: Where ``proc`` and ``sys`` lie; tests put a made-up tree here.
        clock: Seconds.
    """

    def __init__(
        self, memory_bps: float = 0.0, root: Path = _ROOT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._memory_bps, self._root, self._clock = memory_bps, root, clock
        self._most_bps = 0.0
        self._last: tuple[float, float, bool] | None = None

    def read(self) -> float | None:
        """The pressure since the last call; None: it cannot be known, or this is the first call."""
        moved = self._moved_bytes()
        count, is_bytes = (moved, True) if moved is not None else (self._waited_s(), False)
        now, last = self._clock(), self._last
        self._last = None if count is None else (now, count, is_bytes)
        if count is None or last is None or last[2] != is_bytes or now <= last[0]:
            return None
        rate = max(0.0, count - last[1]) / (now - last[0])
        if not is_bytes:
            return min(1.0, rate)
        self._most_bps = max(self._most_bps, rate)
        capacity = self._memory_bps or self._most_bps
        return min(1.0, rate / capacity) if capacity else 0.0

    def _moved_bytes(self) -> float | None:
        """Bytes that were moved so far, by the control groups; a group counts those of its monitoring groups, too."""
        folder = self._root / "sys/fs/resctrl"
        total: int | None = None
        for pattern in ("mon_data", "*/mon_data"):
            for data in folder.glob(pattern):
                for counter in data.glob("mon_L3_*/mbm_total_bytes"):
                    text = _read(counter)  # "Unavailable" where the hardware has no counter left
                    if text.isdigit():
                        total = (total or 0) + int(text)
        return total

    def _waited_s(self) -> float | None:
        for line in _read(self._root / "proc/pressure/cpu").splitlines():
            words = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
            if line.startswith("some ") and words.get("total", "").isdigit():
                return int(words["total"]) / 1e6
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
