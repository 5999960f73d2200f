"""SpeCon (Mao et al.): converged runs give way."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.profiles.profile import Profile

PROFILES: dict[str, Callable[[], Profile]] = {}
