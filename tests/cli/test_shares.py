"""`prefect-gpu shares`, from the page of a made-up pool; tests/live/test_shares.py has a real one."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.cli.conftest import InProcess
from tests.cli.test_status import served
from tests.page.scene import Scene, divided


def test_it_shows_what_each_owner_has_and_may_expect(run_cli: InProcess, state: Path) -> None:
    scene = Scene(time.time(), [])
    scene.shares = divided()
    with served(state, scene):
        shown = run_cli("shares").stdout
        told = json.loads(run_cli("shares", "--json").stdout)
    assert "Pool gpus: 8 devices, half-life 24 h" in shown
    for words in ("vision:", "  ada", "zoe", "100% of 100%", "has all that it"):
        assert words in shown
    assert told[0]["pool"] == "gpus" and told[0]["half_life_s"] == 86_400
    assert [row["name"] for row in told[0]["rows"]] == ["nlp", "vision", "ada", "bob", "zoe"]


def test_a_name_in_brackets_is_shown_as_it_is(run_cli: InProcess, state: Path) -> None:
    scene = Scene(time.time(), [])
    scene.shares = divided()
    scene.name = "gpus[a100]"
    with served(state, scene, pool=scene.name):
        shown = run_cli("shares").stdout
    assert "Pool gpus[a100]: 8 devices" in shown


def test_a_pool_that_is_not_divided_says_how_it_could_be(run_cli: InProcess, state: Path) -> None:
    with served(state, Scene(time.time(), [])):
        done, told = run_cli("shares"), run_cli("shares", "--json")
    assert done.exit_code == told.exit_code == 1
    assert "all runs are alike" in done.stderr and "PREFECT_INTEGRATIONS_GPU_QUOTA" in done.stderr
    assert json.loads(told.stdout) == [{"pool": "gpus", "rows": []}]


def test_no_worker_answers(run_cli: InProcess, state: Path) -> None:
    done = run_cli("shares", "--pool", "gpus")
    assert done.exit_code == 1 and "No worker of pool 'gpus' answers" in done.stderr
