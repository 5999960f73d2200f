"""Which profiles are composed alike: the same policies, put together in the same way, with other numbers in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from itertools import chain

import numpy as np

from prefect_gpu.scheduling.profiles import Profile, all_profiles


def composition(profile: Profile) -> object:
    """What a profile is made of, with numbers, names and learned weights left out; it can be hashed.

    Profiles with equal compositions run the same code. Switches count: True and False, None, what is 0 (off) and what
    is infinite (without limit).
    """
    return _made_of({name: value for name, value in vars(profile).items() if name != "name"}, ())


def _made_of(value: object, inside: tuple[int, ...]) -> object:
    """The structure of one value; ``inside`` are the objects that it is a part of, as some know each other."""
    if value is None or isinstance(value, bool | Enum):
        return value
    if isinstance(value, int | float):
        return "none" if not value else "number" if math.isfinite(value) else "no limit"
    if isinstance(value, str | bytes | np.ndarray | np.generic) or id(value) in inside:
        return type(value).__qualname__
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        known = ((_made_of(key, inside), _made_of(one, inside)) for key, one in value.items())
        return (type(value).__qualname__, frozenset(known))
    if isinstance(value, Collection):
        parts = [_made_of(one, inside) for one in value]
        return (type(value).__qualname__, tuple(parts) if isinstance(value, tuple) else frozenset(parts))
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    cls = type(value)
    slots = chain.from_iterable(getattr(one, "__slots__", ()) for one in cls.__mro__)
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    known = tuple((name, _made_of(one, inside)) for name, one in sorted(attributes.items()))
    return (f"{cls.__module__}.{cls.__qualname__}", known)


def _kinds(profiles: Mapping[str, Callable[[], Profile]]) -> dict[str, tuple[str, ...]]:
    alike: dict[object, list[str]] = {}
    for name in sorted(profiles, key=lambda name: (len(name), name)):
        alike.setdefault(composition(profiles[name]()), []).append(name)
    return {names[0]: tuple(names[1:]) for names in alike.values()}


KINDS = _kinds(all_profiles())
"""The shortest name of each composition, with the other names of it."""
