"""Liquid (Gu et al., TPDS 2022): network-aware placement, sharing, pre-scheduling."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.profiles.profile import Profile

PROFILES: dict[str, Callable[[], Profile]] = {}
