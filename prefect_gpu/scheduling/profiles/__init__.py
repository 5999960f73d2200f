"""Profiles: named compositions of policies, one module for each paper, one for the baselines, two of ours."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.profiles import adaptive, ahead, baselines, coda, deepshare, fscheduling, liquid, specon
from prefect_gpu.scheduling.profiles.profile import Profile

PROFILES: dict[str, Callable[[], Profile]] = {
    **adaptive.PROFILES,
    **ahead.PROFILES,
    **baselines.PROFILES,
    **liquid.PROFILES,
    **specon.PROFILES,
    **fscheduling.PROFILES,
    **deepshare.PROFILES,
    **coda.PROFILES,
}

__all__ = ["PROFILES", "Profile", "get_profile"]


def get_profile(name: str) -> Profile:
    """A fresh profile of that name.

    Raises:
        ValueError: There is none; the message lists those there are.
    """
    try:
        return PROFILES[name]()
    except KeyError:
        known = ", ".join(sorted(PROFILES))
        raise ValueError(f"profile={name!r} is not known: choose one of {known}.") from None
