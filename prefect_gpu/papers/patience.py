"""Profiles for worlds in which jobs wait for ever."""

from __future__ import annotations

import math
from dataclasses import replace

from prefect_gpu.scheduling.profiles import Profile, get_profile


def without_patience(profile: Profile | str) -> Profile:
    """The profile, or a fresh one of that name, for a world in which jobs wait for ever, as in the papers' simulators.

    Raises:
        ValueError: There is none of that name.
    """
    return replace(get_profile(profile) if isinstance(profile, str) else profile, patience_s=math.inf)
