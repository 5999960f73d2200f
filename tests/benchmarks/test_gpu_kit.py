"""The GPU kit on a virtual device: real processes, the real controller; and its stand-in for websockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import require

ROOT = Path(__file__).resolve().parents[2]


def kit(*arguments: str, before: str = "") -> tuple[dict[str, Any], str]:
    """What the kit prints in a process of its own, and what it says on the way."""
    code = f"{before}\nimport sys\nfrom benchmarks.gpu.__main__ import main\nsys.exit(main())"
    command = [sys.executable, "-c", code, "--json", "--quick", "--virtual", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, env={**os.environ})
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.slow
def test_every_part_runs_to_its_end_on_a_virtual_device(tmp_path: Path) -> None:
    require("torch")
    require("matplotlib")
    found, said = kit("--out", str(tmp_path))
    assert found["benchmark"] == "gpu" and found["virtual"] is True and "VIRTUAL" in found["device"]
    assert found["failed"] == {}, said
    parts = found["parts"]
    assert set(parts) == {"idle", "sharing", "caps", "memory", "cores"}
    assert set(parts["idle"]["modes"]) == {"heartbeat 1 s", "events", "events and pre-scheduling"}
    assert [len(mode["gaps_s"]) for mode in parts["idle"]["modes"].values()] == [2, 2, 2]
    assert parts["idle"]["modes"]["events"]["in_time"] == 0.0
    assert {one["usage"]["exclusive"]["together"] for one in parts["sharing"]["sets"].values()} == {1}
    assert parts["cores"]["tuner"]["ended"] and parts["cores"]["tuner"]["given"] == parts["cores"]["tuner"]["cores"]
    for claim in found["claims"]:
        assert set(claim) == {"name", "value", "asked", "holds"}
        if claim["asked"] == "== 1":  # what must be so however busy the machine is; times are the benchmark's business
            assert claim["holds"], claim
    pictures = sorted(path.name for path in tmp_path.iterdir())
    assert pictures == [f"gpu-{name}-virtual.png" for name in ("cores", "idle", "memory", "sharing")]
    assert found["pictures"] == [
        str(tmp_path / f"gpu-{name}-virtual.png") for name in ("idle", "sharing", "memory", "cores")
    ]


@pytest.mark.slow
def test_the_kit_works_without_websockets() -> None:
    require("torch")
    # The trainings are new processes, or forks of one, and have the package: both ends must be told.
    missing = "import os; os.environ['GPU_KIT_PLAIN_CHANNEL'] = '1'"
    found, said = kit("--part", "memory", before=missing)
    assert "stand-in" in found["channel"]
    assert found["failed"] == {}, said
    assert all(claim["holds"] for claim in found["claims"]), said
