"""The core: what runs where and when. Pure: no I/O, no clock, no unseeded randomness.

:class:`~prefect_gpu.scheduling.scheduler.Scheduler` is the only door: events go in, instructions come out, and the
same events at the same times always give the same instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect_gpu.scheduling.scheduler import Scheduler, SchedulingError

__all__ = ["Scheduler", "SchedulingError"]


def __getattr__(name: str) -> Any:
    """Import the core when it is asked for: blocks need the model alone, and lie where numpy may not be installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from prefect_gpu.scheduling import scheduler

    return getattr(scheduler, name)
