"""Profiles: named compositions of policies. Here are those for production; papers register their own.

A package registers profiles by an entry point of the group ``prefect_gpu.profiles``, which names a table like
:data:`baselines.PROFILES`. Our papers do the same, so that nothing of them is loaded before somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points

from prefect_gpu.scheduling.profiles import adaptive, baselines
from prefect_gpu.scheduling.profiles.profile import Profile

GROUP = "prefect_gpu.profiles"
_OURS: dict[str, Callable[[], Profile]] = {**adaptive.PROFILES, **baselines.PROFILES}

__all__ = ["GROUP", "Profile", "all_profiles", "get_profile"]


def all_profiles() -> Mapping[str, Callable[[], Profile]]:
    """Makers of all profiles by name: those for production, and those that installed packages register."""
    return _registered()[0]


@cache
def _registered() -> tuple[Mapping[str, Callable[[], Profile]], tuple[str, ...]]:
    """(Makers of all profiles by name, what is wrong with registrations that cannot be loaded)."""
    found: dict[str, Callable[[], Profile]] = {}
    failed = []
    for entry in entry_points(group=GROUP):
        try:
            table = dict(entry.load())
            if odd := [name for name in table if not isinstance(name, str)]:
                raise TypeError(f"the name {odd[0]!r} is no text")
            found.update(table)
        except Exception as error:  # one package's mistake must not hide the profiles of the others
            failed.append(f"those that {entry.value} registers cannot be loaded ({type(error).__name__}: {error})")
    return found | _OURS, tuple(failed)


def get_profile(name: str) -> Profile:
    """A fresh profile of that name.

    Raises:
        ValueError: There is none; the message lists those there are, and names registrations that cannot be loaded. Or
            the package that registers it makes no profile.
    """
    make = _OURS.get(name) or all_profiles().get(name)
    if make is None:
        failed = "".join(f"; {words}" for words in _registered()[1])
        raise ValueError(f"profile={name!r} is not known: choose one of {', '.join(sorted(all_profiles()))}{failed}.")
    try:
        profile = make()
    except Exception as error:
        raise ValueError(
            f"profile={name!r} cannot be made ({type(error).__name__}: {error}): mend the package that registers it."
        ) from error
    if not isinstance(profile, Profile):
        raise ValueError(f"profile={name!r} makes no Profile: {profile!r}. Mend the package that registers it.")
    return profile
