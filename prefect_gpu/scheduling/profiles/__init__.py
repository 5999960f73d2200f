"""Profiles: named compositions of policies, one module for each paper, one for the baselines, two of ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

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

__all__ = ["PROFILES", "Profile", "get_live_profile", "get_profile", "without_patience"]


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


def get_live_profile(name: str) -> Profile:
    """A fresh profile of that name, for the runs of a pool and for their history.

    Raises:
        ValueError: There is none, or it goes by what these runs cannot say: it would be FIFO, and nobody would know.
    """
    profile = get_profile(name)
    said = profile.order.goes_by
    if said is not None:
        raise ValueError(
            f"profile={name!r} goes by the {said} of each run, which a run of a work pool cannot say yet: all of them "
            "would simply be taken first come, first served. Choose another, such as adaptive, and let some runs come "
            "first by the priorities of work queues; for traces, `prefect-gpu simulate` knows this profile."
        )
    return profile


def without_patience(profile: Profile | str) -> Profile:
    """The profile, or a fresh one of that name, for a world in which jobs wait for ever, as in the papers' simulators.

    Raises:
        ValueError: There is none of that name.
    """
    return replace(get_profile(profile) if isinstance(profile, str) else profile, patience_s=math.inf)
