"""Long work begins anew when it fails, and what fails for long is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from prefect_gpu.runtime import tasks as tasks_module
from prefect_gpu.runtime.tasks import Tasks
from tests.runtime.stand_ins import until

LOGGER = logging.getLogger("tests.tasks")


class World:
    """Tasks with a clock that moves with each look at it.

    Attributes:
        step_s: By how much.
    """

    def __init__(self) -> None:
        self.now, self.step_s = 0.0, 0.0
        self.tasks = Tasks(LOGGER, (httpx.HTTPError,), self.clock)

    def clock(self) -> float:
        """Seconds."""
        self.now += self.step_s
        return self.now


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Pauses are short."""
    monkeypatch.setattr(tasks_module, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(tasks_module, "_LONGEST_PAUSE_S", 0.001)
    world = World()
    yield world
    await world.tasks.close()


async def test_work_that_fails_begins_anew_until_it_goes_on(world: World, caplog: pytest.LogCaptureFixture) -> None:
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise KeyError("a bug")
        await asyncio.Event().wait()

    world.tasks.keep(work, "news")
    world.tasks.keep(work, "news")
    await until(lambda: tries == 4)
    assert world.tasks.has("news") and tries == 4, "it is not begun twice"
    assert [one.message for one in caplog.records if one.levelno == logging.ERROR] == [
        "news failed, and is begun anew in 0.0 s"
    ], "said once"


async def test_what_does_nothing_but_fail_is_ill_until_it_goes_on_for_a_while(world: World) -> None:
    tries, error = 0, KeyError("a bug")

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise error

    world.tasks.keep(work, "news")
    await until(lambda: tries > 3)
    assert world.tasks.ill() == {}, "it may be over in a moment"
    world.step_s = 1.0
    await until(world.tasks.ill)
    assert world.tasks.ill()["news"].error is error
    world.step_s = 0.0
    world.now += 100.0
    assert world.tasks.ill() == {}, "it has gone on since"


async def test_that_somebody_is_away_is_no_illness(world: World, caplog: pytest.LogCaptureFixture) -> None:
    tries, world.step_s = 0, 1.0

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise httpx.ConnectError("away")

    world.tasks.keep(work, "news")
    await until(lambda: tries > 100)
    assert world.tasks.ill() == {} and not [one for one in caplog.records if one.levelno > logging.DEBUG]


async def test_work_that_is_done_is_not_begun_again(world: World) -> None:
    answers = [ValueError("not yet"), 7]

    async def work() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await world.tasks.insist(work, "one") == 7
    assert answers == []
