"""The sample that makes an automation, with what would make one that never does anything."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import typer

from prefect_gpu.worker.telling.run_events import RunEvents

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "deployments" / "automations.py"))
URL = "https://hooks.example.com/services/T000"


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"on": ["endet"]}, "--on endet is none of waiting"),
        ({"outcome": ["broken"]}, "--outcome broken is none of completed"),
        ({"on": ["training"], "outcome": ["failed"]}, "Leave --on out"),
        ({"pool": ""}, "--pool is empty"),
        ({"url": "hooks.example.com"}, "begins with http"),
    ],
)
def test_what_would_never_be_told_is_refused(wrong: dict[str, Any], named: str) -> None:
    given = {"pool": "gpus", "url": URL, "on": ["ended"], "outcome": []} | wrong
    with pytest.raises(typer.BadParameter, match=re.escape(named)):
        SCRIPT["notify"](**given)


def test_it_knows_the_events_that_there_are() -> None:
    said = (RunEvents.__doc__ or "").partition("named")[2].partition("Its resource")[0]
    assert set(SCRIPT["WHAT"]) == set(re.findall("``([a-z]+)``", said))


def test_each_pool_has_a_block_of_its_own() -> None:
    names = [SCRIPT["_block_of"](pool) for pool in ("gpus", "team-a", "team_a", "Team A", "Labor für Bilder")]
    assert names[:2] == ["prefect-gpu-gpus", "prefect-gpu-team-a"] and len({*names}) == 5
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in names)
