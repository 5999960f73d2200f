"""The GPU kit on a virtual device: real processes, the real controller; and its stand-in for websockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.quick import quick

pytestmark = pytest.mark.needs("pytorch")


def kit(*parts: str, arguments: tuple[str, ...] = (), **environment: str) -> dict[str, Any]:
    """What the kit prints of some parts. What has to hold however busy the machine is does; times are not looked at."""
    asked = [word for part in parts for word in ("--part", part)]
    found = quick("gpu", "--virtual", *asked, *arguments, **environment)
    assert found["benchmark"] == "gpu" and found["virtual"] is True and "VIRTUAL" in found["device"]
    assert found["failed"] == {} and set(found["parts"]) == {*parts}
    assert all(claim["holds"] or claim["asked"] != "== 1" for claim in found["claims"])
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Four parts at one start, as users run them all."""
    return kit("idle", "sharing", "caps", "cores")


def test_idle_time_is_measured_in_each_mode(found: dict[str, Any]) -> None:
    modes = found["parts"]["idle"]["modes"]
    assert set(modes) == {"events", "events and pre-scheduling"}
    assert [len(mode["gaps_s"]) for mode in modes.values()] == [2, 2]
    assert modes["events"]["in_time"] == 0.0


def test_sets_of_trainings_run_alone_and_together(found: dict[str, Any]) -> None:
    sets = found["parts"]["sharing"]["sets"]
    assert set(sets) == {"CNN x 4"}
    assert sets["CNN x 4"]["usage"]["exclusive"]["together"] == 1
    assert sets["CNN x 4"]["usage"]["shared"]["together"] > 1


def test_the_cap_holds_and_the_neighbour_is_not_hurt(found: dict[str, Any]) -> None:
    claims = [claim for claim in found["claims"] if "cap" in claim["name"] or "neighbour" in claim["name"]]
    assert [claim["holds"] for claim in claims] == [True, True, True]
    caps = found["parts"]["caps"]
    assert (caps["greedy_capped"], caps["greedy_uncapped"]) == ("failed", "completed")


def test_the_tuner_changes_the_cores_of_a_running_pipeline_and_ends(found: dict[str, Any]) -> None:
    tuner = found["parts"]["cores"]["tuner"]
    assert tuner["ended"] and tuner["given"] == tuner["cores"] and tuner["by"] == "step rate"


def test_the_kit_learns_of_memory_draws_and_works_without_websockets(tmp_path: Path) -> None:
    found = kit("memory", arguments=("--out", str(tmp_path)), GPU_KIT_PLAIN_CHANNEL="1")
    assert "stand-in" in found["channel"]
    ends = {one["ended"] for one in found["parts"]["memory"]["tries"]}
    assert ends == {"out of memory", "completed"}
    assert found["pictures"] == [str(tmp_path / "gpu-memory-virtual.png")]
    assert (tmp_path / "gpu-memory-virtual.png").read_bytes().startswith(b"\x89PNG")
