"""A suspension that is refused: the run goes on, even if Prefect's answer was lost."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateDetails, StateType
from prefect.states import Cancelled, Running, Suspended

from prefect_gpu.worker.endings import suspension
from prefect_gpu.worker.endings.suspension import REFUSED, refuse
from tests.worker.prefect_stand_in import OneRun, asking


async def test_a_run_is_told_to_go_on_although_prefects_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its engine would end it as suspended, and Prefect would find it running, and crashed."""
    monkeypatch.setattr(suspension, "LEAVES_BY_ITSELF_S", 0.01)
    prefect = OneRun(Running(name="Training"), Suspended())
    seen, prefect.lose_answer = prefect.as_read(), httpx.ReadTimeout("the answer was lost")
    run: Any = prefect.launch()
    refusing = asking(prefect).persist(lambda: refuse(cast(PrefectClient, prefect), run, seen))
    assert await asyncio.wait_for(refusing, 60.0)
    state = prefect.states[-1]
    assert (state.type, state.name, state.message) == (StateType.RUNNING, "Training", REFUSED)


async def test_whoever_suspends_a_run_under_a_deployments_limit_is_told_that_prefect_will_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suspension, "LEAVES_BY_ITSELF_S", 0.01)
    holds = StateDetails(deployment_concurrency_lease_id=uuid4())
    prefect = OneRun(Running(name="Training", state_details=holds), Suspended())
    assert await refuse(cast(PrefectClient, prefect), cast(Any, prefect.launch()), prefect.as_read())
    assert "concurrency limit" in (prefect.states[-1].message or "")


async def test_a_run_that_was_resumed_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspension, "LEAVES_BY_ITSELF_S", 0.01)
    prefect = OneRun(Running(), Suspended())
    seen = prefect.as_read()
    prefect.states.append(Running(name="Training"))
    assert not await refuse(cast(PrefectClient, prefect), cast(Any, prefect.launch()), seen)


async def test_a_run_that_is_cancelled_meanwhile_stays_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspension, "LEAVES_BY_ITSELF_S", 0.01)
    prefect = OneRun(Running(), Suspended())
    seen = prefect.as_read()
    prefect.after_read = lambda: prefect.states.append(Cancelled())
    assert not await refuse(cast(PrefectClient, prefect), cast(Any, prefect.launch()), seen)
    assert prefect.shown[0] == "cancelled"
