"""Whose a run is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from prefect_gpu.settings import OWNER_RULES, GpuSettings
from prefect_gpu.worker.shares.owners import owner_of


def made(tags: tuple[str, ...] = (), by: tuple[str, str] | None = None, queue: str | None = "default") -> Any:
    creator = None if by is None else SimpleNamespace(type=by[0], display_value=by[1])
    return SimpleNamespace(tags=list(tags), created_by=creator, work_queue_name=queue)


TAGGED = made(("x", "owner:zoe", "owner:ada"))


@pytest.mark.parametrize(
    ("said", "run", "deployment", "rules", "owner"),
    [
        ("eve", TAGGED, None, OWNER_RULES, "eve"),
        ("", TAGGED, None, OWNER_RULES, "ada"),
        ("", made(), TAGGED, OWNER_RULES, "ada"),
        ("", made(by=("USER", "ada@lab")), None, OWNER_RULES, "ada@lab"),
        ("", made(by=("AUTOMATION", "nightly")), None, OWNER_RULES, "default"),
        ("", made(by=("DEPLOYMENT", "train")), None, ("creator",), ""),
        ("eve", TAGGED, None, ("queue", "variable"), "default"),
        ("eve", made(queue=None), None, ("queue", "variable"), "eve"),
        ("", made(queue=None), None, OWNER_RULES, ""),
    ],
)
def test_the_first_rule_that_finds_an_owner_counts(
    said: str, run: Any, deployment: Any, rules: tuple[str, ...], owner: str
) -> None:
    assert owner_of(said, run, deployment, rules) == owner


def test_the_rules_are_a_setting() -> None:
    assert GpuSettings().owner_from == list(OWNER_RULES)
    assert GpuSettings(owner_from="queue, tag").owner_from == ["queue", "tag"]
    with pytest.raises(ValidationError, match="'mood' says no owner: choose some of variable, tag, creator, queue"):
        GpuSettings(owner_from="queue,mood")
