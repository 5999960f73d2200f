"""What a training of a run is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prefect_gpu.training import numbering
from prefect_gpu.training.protocol import ENV_ROLE


def flow_run(name: str, parent: str | None = None) -> Any:
    return SimpleNamespace(id=name, run_count=1, parent_task_run_id=parent)


@pytest.mark.parametrize("in_a_gang", [True, False])
def test_all_instances_of_a_gang_call_the_training_of_a_subflow_the_same(
    in_a_gang: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The further ones call the flow's function outside of Prefect, so that a subflow is none there."""
    if in_a_gang:
        monkeypatch.setenv(ENV_ROLE, "worker")
    names = []
    for flows in ([flow_run("outer"), flow_run("inner", "call")], [flow_run("another")]):
        monkeypatch.setattr(numbering, "_around", lambda flows=flows: (flows, None))
        counts = numbering.Numbering()
        names.append([counts.next("run"), counts.next("run")])
    assert names[1] == ["", "training-2"] and (names[0] == names[1]) is in_a_gang
