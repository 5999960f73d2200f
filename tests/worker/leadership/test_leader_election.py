"""A worker that leads no more tells Prefect nothing, whatever it was about to do."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.states import Running

from prefect_gpu.runtime.devices.locks import Locks
from prefect_gpu.worker.leadership import leader_election
from prefect_gpu.worker.leadership import lease as lease_module
from prefect_gpu.worker.leadership.leader_election import Leadership, NotLeadingError
from prefect_gpu.worker.leadership.lease import Lease
from tests.worker.leadership.test_lease import Clock, Kept

LOGGER = logging.getLogger("tests.worker")


def leadership(tmp_path: Path, said: list[str]) -> Leadership:
    return Leadership(Locks(tmp_path), said.append, lambda: None, LOGGER)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of a lease whose terms are kept in memory."""
    clock = Clock()
    monkeypatch.setattr(leader_election, "PrefectTerms", lambda client, name: Kept())
    monkeypatch.setitem(Lease.__init__.__kwdefaults__ or {}, "clock", clock)
    return clock


async def test_who_may_have_lost_the_lead_changes_nothing_in_prefect(tmp_path: Path, clock: Clock) -> None:
    asked: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/csrf-token"):
            return httpx.Response(404)
        asked.append((request.method, request.url.path))
        return httpx.Response(200, json=[])

    async with PrefectClient("http://prefect/api", httpx_settings={"transport": httpx.MockTransport(answer)}) as client:
        mine = leadership(tmp_path, [])
        assert mine.held, "without an Engine or a Swarm there is nobody to lose it to"
        await mine.take(client, "pool", "engine-1")
        await client.read_flow_runs()
        assert mine.held and asked
        clock.now += lease_module.LEASE_S
        asked.clear()
        running: State[Any] = Running()
        for change in (
            lambda: client.set_flow_run_state(uuid4(), running),
            lambda: client.update_flow_run(uuid4(), name="other"),
            lambda: client.delete_flow_run(uuid4()),
        ):
            with pytest.raises(NotLeadingError):
                await change()
        assert not mine.held and asked == []
        await client.read_flow_runs()
        assert asked, "it may look"
        await mine.release()
        await client.delete_flow_run(uuid4())
        assert asked[-1][0] == "DELETE", "who has left Prefect to others does not hold the client back"


async def test_a_session_that_is_opened_again_has_one_lease(tmp_path: Path, clock: Clock) -> None:
    async with PrefectClient("http://prefect/api") as client:
        mine = leadership(tmp_path, [])
        await mine.take(client, "pool", "engine-1")
        await mine.take(client, "pool", "engine-1")
        assert len(client._client.event_hooks["request"]) == 1
        assert mine.held


async def test_who_shows_no_sign_of_life_is_killed_and_who_does_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_election, "_LOOK_S", 0.001)
    said: list[str] = []
    mine, holder = leadership(tmp_path, said), Locks(tmp_path)
    assert holder.lock_pool("pool")
    killed: list[str] = []
    beats = iter(range(100))

    def kill(pool: str) -> int:
        killed.append(pool)
        holder.release()
        return 4711

    monkeypatch.setattr(mine._locks, "kill_holder", kill)
    monkeypatch.setattr(mine._locks, "last_beat", lambda pool: next(beats, -1))
    await asyncio.wait_for(mine.claim("pool"), 60)
    assert killed == ["pool"] and next(beats, None) is None, "not before its last sign of life"
    assert len(said) == 1 and "Standing by" in said[0]
