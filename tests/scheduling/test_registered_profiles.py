"""Profiles that other packages register."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

import pytest

from prefect_gpu.scheduling import profiles
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.order.orders import Fifo

PROFILES = {
    "raises": lambda: 1 // 0,
    "returns nothing": lambda: None,
    "is none": profiles.Profile("x"),
    "a class": lambda: profiles.Profile("x", order=Fifo),  # type: ignore[arg-type]
    "not in a tuple": lambda: profiles.Profile("x", allocation=Backfill()),  # type: ignore[arg-type]
    "not a number": lambda: profiles.Profile("x", patience_s=math.nan),
}
WITHOUT_A_NAME = {3: lambda: profiles.Profile("three")}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    values = ("no_such_module:PROFILES", f"{__name__}:PROFILES", f"{__name__}:WITHOUT_A_NAME")
    theirs = [EntryPoint("theirs", value, profiles.GROUP) for value in values]
    monkeypatch.setattr(profiles, "entry_points", lambda group: (*theirs, *entry_points(group=group)))
    profiles._registered.cache_clear()
    yield
    profiles._registered.cache_clear()


@pytest.mark.usefixtures("broken")
def test_a_package_whose_profiles_cannot_be_loaded_keeps_nobody_from_the_others() -> None:
    assert profiles.get_profile("tiresias").name == "tiresias"
    with pytest.raises(ValueError, match="choose one of a class, adaptive, ") as said:
        profiles.get_profile("nonsense")
    for value, why in (("no_such_module:PROFILES", "Module"), (f"{__name__}:WITHOUT_A_NAME", "TypeError: the name 3")):
        assert f"; those that {value} registers cannot be loaded ({why}" in str(said.value)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", r"cannot be made \(ZeroDivisionError: .*\): mend the package"),
        ("returns nothing", "makes no Profile: None"),
        ("is none", r"cannot be made \(TypeError: 'Profile' object is not callable\)"),
        ("a class", r"cannot be made \(TypeError: order=<class .*Fifo'> is no Order: give an object"),
        ("not in a tuple", r"cannot be made \(TypeError: allocation=<.*> is no tuple of Action objects: give one"),
        ("not a number", r"cannot be made \(ValueError: patience_s=nan is no number from 0 on: give one"),
    ],
)
def test_a_registered_profile_that_cannot_be_made_is_named(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^profile='{name}' {words}"):
        profiles.get_profile(name)
