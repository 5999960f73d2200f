"""The health check: what a restart may help against, and what it does not."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from prefect_gpu.worker.health import Health
from tests.runtime.stand_ins import until


class Session:
    """A session that serves."""

    def __init__(self) -> None:
        self.well_s = 0.0
        self.failing: list[str] = []

    def ill(self) -> list[str]:
        """See PoolSession."""
        return self.failing


class World:
    """A worker's health with a time that the test lets pass."""

    def __init__(self) -> None:
        self.now, self.look_every_s = 0.0, 10.0
        self.session = Session()
        self.health = Health(lambda: self.now)

    @property
    def wrong(self) -> list[str]:
        """As Prefect asks for it."""
        return self.health.wrong(cast(Any, self.session), self.look_every_s)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_loop_that_stands_still_is_wrong_and_one_that_turns_is_not(world: World) -> None:
    turning = asyncio.ensure_future(world.health.turn())
    await asyncio.sleep(0)
    world.now = 31.0
    assert world.wrong == ["its event loop has stood still for 31 s"]
    await until(lambda: not world.wrong)
    turning.cancel()


@pytest.mark.parametrize("look_every_s", [0.5, 10.0])
def test_who_looks_at_no_pool_is_wrong_unless_prefect_is_or_was_away(world: World, look_every_s: float) -> None:
    world.look_every_s = look_every_s
    for world.now, world.session.well_s in ((299.0, 299.0), (486.0, 0.0), (500.0, 14.0)):
        world.health._turned_at = world.now
        assert world.wrong == [], "its look may be one of those that Prefect's client repeats"
    world.now, world.session.well_s = 787.0, 301.0
    world.health._turned_at = world.now
    assert world.wrong == ["it has not looked at the pool for 787 s, although Prefect answers"]
    world.health.looked()
    assert world.wrong == []


def test_work_that_does_nothing_but_fail_is_named(world: World) -> None:
    world.session.failing.append("news fails: KeyError('a bug')")
    found: list[list[str]] = []
    asking = threading.Thread(target=lambda: found.append(world.wrong))
    asking.start()
    asking.join()
    assert found == [["news fails: KeyError('a bug')"]]
