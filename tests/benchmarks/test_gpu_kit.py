"""The GPU kit on a virtual device: real processes, the real controller; and its stand-in for websockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.quick import quick

pytestmark = pytest.mark.needs("pytorch")


def kit(part: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """What the kit prints of one part. What has to hold however busy the machine is does; times are not looked at."""
    found = quick("gpu", "--virtual", "--part", part, *arguments, **environment)
    assert found["benchmark"] == "gpu" and found["virtual"] is True and "VIRTUAL" in found["device"]
    assert found["failed"] == {} and set(found["parts"]) == {part}
    assert all(claim["holds"] or claim["asked"] != "== 1" for claim in found["claims"])
    return found


def test_idle_time_is_measured_in_each_mode() -> None:
    modes = kit("idle")["parts"]["idle"]["modes"]
    assert set(modes) == {"heartbeat 1 s", "events", "events and pre-scheduling"}
    assert [len(mode["gaps_s"]) for mode in modes.values()] == [2, 2, 2]
    assert modes["events"]["in_time"] == modes["heartbeat 1 s"]["in_time"] == 0.0


def test_sets_of_trainings_run_alone_and_together() -> None:
    sets = kit("sharing")["parts"]["sharing"]["sets"]
    assert set(sets) == {"CNN x 4", "NeuMF x 2", "mixed x 2"}
    assert {one["usage"]["exclusive"]["together"] for one in sets.values()} == {1}
    assert sets["CNN x 4"]["usage"]["shared"]["together"] > 1


def test_the_cap_holds_and_the_neighbour_is_not_hurt() -> None:
    found = kit("caps")
    assert [claim["holds"] for claim in found["claims"]] == [True, True, True]
    caps = found["parts"]["caps"]
    assert (caps["greedy_capped"], caps["greedy_uncapped"]) == ("failed", "completed")


def test_the_tuner_changes_the_cores_of_a_running_pipeline_and_ends() -> None:
    tuner = kit("cores")["parts"]["cores"]["tuner"]
    assert tuner["ended"] and tuner["given"] == tuner["cores"] and tuner["by"] == "step rate"


def test_the_kit_learns_of_memory_draws_and_works_without_websockets(tmp_path: Path) -> None:
    found = kit("memory", "--out", str(tmp_path), GPU_KIT_PLAIN_CHANNEL="1")
    assert "stand-in" in found["channel"]
    ends = {one["ended"] for one in found["parts"]["memory"]["tries"]}
    assert ends == {"out of memory", "completed"}
    assert found["pictures"] == [str(tmp_path / "gpu-memory-virtual.png")]
    assert (tmp_path / "gpu-memory-virtual.png").read_bytes().startswith(b"\x89PNG")
