"""What owners and automations are told of promises; tests/live/test_deadlines.py sees what Prefect makes of it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, WorkPool

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.scheduling.model.instructions import Refuse
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.worker.deadlines.promising import PROMISED, promised_before, refusal
from prefect_gpu.worker.learning import promises_of
from prefect_gpu.worker.telling.run_events import AT_RISK, RunEvents


def test_a_refusal_names_the_date_and_the_remedy() -> None:
    words = refusal(Refuse("a", CLOCK() + 3600.0, "it may need 95 min"))
    assert "The earliest that could be promised now is 20" in words and "It may need 95 min." in words
    assert "deadline_kind=best-effort" in words
    assert refusal(Refuse("a", None, "nobody knows")) == "The deadline cannot be promised. Nobody knows."


@pytest.mark.parametrize("labels, found", [({}, None), ({PROMISED: 0.9}, 0.9), ({PROMISED: True}, None), (None, None)])
def test_a_later_worker_finds_the_promise_in_the_labels(labels: Any, found: float | None) -> None:
    assert promised_before(FlowRun(flow_id=uuid4(), labels=labels)) == found


def test_automations_hear_of_a_promise_at_risk() -> None:
    said: list[dict[str, Any]] = []
    run = FlowRun(flow_id=uuid4(), name="wise-owl", tags=["ada"])
    pool = WorkPool(name="gpus", type="gpu", default_queue_id=uuid4())
    events = RunEvents(pool, lambda _: run, lambda **event: said.append(event), lambda _: None)
    events.at_risk(str(run.id), run.name, "it takes longer than was thought", 1000.0)
    [event] = said
    assert event["event"] == AT_RISK and event["resource"]["prefect-gpu.pool"] == "gpus"
    assert event["payload"] == {"reason": "it takes longer than was thought", "deadline": 1000.0}
    assert any(one.id.endswith(str(run.id)) for one in event["related"])


def test_a_worker_begins_with_what_promises_came_to() -> None:
    def row(name: str, ended: float, promised: float | None, outcome: Any = "completed") -> HistoryRow:
        times = {"granted_at": 130.0, "waited_s": 30.0, "trained_s": 50.0, "deadline_at": 300.0}
        return HistoryRow(name, "train", outcome, ended_at=ended, promised=promised, **times)  # type: ignore[arg-type]

    rows = [
        row("new", 350.0, 0.9),
        row("failed", 200.0, 0.9, "failed"),
        row("old", 250.0, 0.9),
        row("oldest", 200.0, None),
    ]
    assert promises_of(rows) == ((200.0, 50.0, None), (200.0, 50.0, True), (200.0, 50.0, False))
