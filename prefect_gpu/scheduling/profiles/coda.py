"""CODA (Zhao et al., ICDCS 2020): cores tuned, arrays for CPU and GPU jobs, contention eliminated."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.profiles.profile import Profile

PROFILES: dict[str, Callable[[], Profile]] = {}
