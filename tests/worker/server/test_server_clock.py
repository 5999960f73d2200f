"""The server's clock shows something else than the worker's machine, or the one of the two is set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import httpx
import pytest
import pytest_asyncio
from prefect.client.orchestration import PrefectClient

from prefect_gpu.runtime.clock import Clock
from prefect_gpu.worker.server.server_clock import ServerClock

NOON = datetime(2030, 6, 1, 12, tzinfo=timezone.utc)


class World:
    """A server and a worker on two machines, and the time that passes for both.

    Attributes:
        server_s: How much more the server's clock shows than it is.
        worker_s: How much more the worker's does.
        takes_s: How long an answer travels.
        late_s: By how much the date of an answer is older than the answer.
        status: What it is.
    """

    def __init__(self) -> None:
        self.passed, self.server_s, self.worker_s, self.takes_s, self.status = 0.0, 0.0, 0.0, 0.25, 200
        self.late_s = 0.0
        self.clock = ServerClock(Clock(lambda: NOON.timestamp() + self.passed + self.worker_s, lambda: self.passed))

    @property
    def server_now(self) -> datetime:
        """What the server's clock shows."""
        return NOON + timedelta(seconds=self.passed + self.server_s)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """The server's answer; its date leaves out what is less than a second."""
        if request.url.path.endswith("/csrf-token"):
            return httpx.Response(404)
        dated = self.server_now - timedelta(seconds=self.late_s)
        date = format_datetime(dated.replace(microsecond=0), usegmt=True)
        self.passed += self.takes_s
        return httpx.Response(self.status, json=[], headers={"date": date})

    def error_s(self) -> float:
        """How far the worker is mistaken in the server's clock."""
        return abs((self.clock.now() - self.server_now).total_seconds())


@pytest.fixture
def world() -> World:
    return World()


@pytest_asyncio.fixture
async def client(world: World) -> AsyncIterator[PrefectClient]:
    """A client whose answers the worker looks at."""
    async with PrefectClient(
        "http://prefect/api", httpx_settings={"transport": httpx.MockTransport(world.answer)}
    ) as client:
        world.clock.listen(client)
        yield client


async def test_clocks_that_agree_are_taken_as_the_same(world: World, client: PrefectClient) -> None:
    for _ in range(20):
        world.passed += 0.37
        await client.read_flow_runs()
        assert world.error_s() < 0.002


@pytest.mark.parametrize("by_s", [-3600.0, 3600.0, 17.0])
@pytest.mark.parametrize("whose", ["server", "worker"])
async def test_a_clock_that_is_set_is_seen_at_the_next_answer(
    whose: str, by_s: float, world: World, client: PrefectClient
) -> None:
    await client.read_flow_runs()
    for step in (by_s, 0.0):  # and then it is put right
        setattr(world, f"{whose}_s", step)
        for _ in range(5):
            world.passed += 0.37
            await client.read_flow_runs()
            assert world.error_s() <= 1.0
            created = world.server_now - timedelta(seconds=5)
            assert abs(world.clock.of(created) - (NOON.timestamp() + world.passed - 5.0)) <= 1.0


async def test_a_date_that_is_late_is_not_taken_for_the_clock(world: World, client: PrefectClient) -> None:
    """A server that stood still for seconds answers with the date from before."""
    for late_s in (3.5, 0.0, 2.5, 0.0):
        world.late_s = late_s
        await client.read_flow_runs()
        world.passed += 0.37
        assert world.error_s() < 0.002
    world.server_s = -3.0
    for _ in range(4):
        world.passed += 0.6
        await client.read_flow_runs()
    assert world.error_s() <= 1.0, "all answers say so"


async def test_a_slow_answer_and_one_without_a_date_say_nothing(world: World, client: PrefectClient) -> None:
    await client.read_flow_runs()
    world.takes_s = 30.0
    await client.read_flow_runs()
    assert world.error_s() < 0.002
    world.clock.leave()
    world.server_s, world.takes_s = 3600.0, 0.25
    await client.read_flow_runs()
    assert world.error_s() > 3000, "it looks no more"


async def test_it_is_known_for_how_long_the_server_has_answered_everything(world: World, client: PrefectClient) -> None:
    await client.read_flow_runs()
    world.passed += 300.0
    await client.read_flow_runs()
    assert world.clock.well_s == 300.5
    world.status = 500
    with pytest.raises(httpx.HTTPStatusError):
        await client.read_flow_runs()
    world.status, world.passed = 200, world.passed + 40.0
    await client.read_flow_runs()
    assert world.clock.well_s == 40.25
    seen = []
    world.takes_s = 60.0  # it stands still, and is asked
    answer = world.answer

    def asked_later(request: httpx.Request) -> httpx.Response:
        try:
            return answer(request)
        finally:
            seen.append(world.clock.well_s)

    client._client._transport.handler = asked_later  # type: ignore[attr-defined]
    await client.read_flow_runs()
    assert (seen, world.clock.well_s) == ([0.0], 0.0)


async def test_it_is_known_for_how_long_the_server_has_answered_nothing_but_errors(
    world: World, client: PrefectClient
) -> None:
    world.status = 500
    for _ in range(4):
        with pytest.raises(httpx.HTTPStatusError):
            await client.read_flow_runs()
        world.passed += 14.75
    assert world.clock.away_s == 60.0
    world.status = 200
    await client.read_flow_runs()
    world.passed += 300.0
    assert world.clock.away_s == 0.0, "nobody has asked"
