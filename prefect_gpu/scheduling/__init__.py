"""The core: what runs where and when. Pure: no I/O, no clock, no unseeded randomness.

:class:`~prefect_gpu.scheduling.scheduler.Scheduler` is the only door: events go in, instructions come out, and the
same events at the same times always give the same instructions.
"""

from prefect_gpu.scheduling.scheduler import Scheduler, SchedulingError

__all__ = ["Scheduler", "SchedulingError"]
