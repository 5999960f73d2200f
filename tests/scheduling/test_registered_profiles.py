"""Profiles that other packages register."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

import pytest

from prefect_gpu.scheduling import profiles


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    theirs = EntryPoint("theirs", "no_such_module:PROFILES", profiles.GROUP)
    monkeypatch.setattr(profiles, "entry_points", lambda group: (theirs, *entry_points(group=group)))
    profiles._registered.cache_clear()
    yield
    profiles._registered.cache_clear()


@pytest.mark.usefixtures("broken")
def test_a_package_whose_profiles_cannot_be_loaded_keeps_nobody_from_the_others() -> None:
    assert profiles.get_profile("tiresias").name == "tiresias"
    with pytest.raises(ValueError, match=r"choose one of adaptive, .*; those that no_such_module:PROFILES registers"):
        profiles.get_profile("nonsense")
