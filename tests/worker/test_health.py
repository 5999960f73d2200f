"""The health check: what a restart may help against, and what it does not."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from prefect_gpu.runtime.tasks import Failing
from prefect_gpu.worker.health import Health
from tests.runtime.stand_ins import until


class Session:
    """A session that serves."""

    def __init__(self) -> None:
        self.answered_s = 0.0
        self.failing: dict[str, Failing] = {}

    def ill(self) -> dict[str, Failing]:
        """See PoolSession."""
        return self.failing


class World:
    """A worker's health with a time that the test lets pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.session = Session()
        self.health = Health(lambda: self.now)

    @property
    def wrong(self) -> list[str]:
        """As Prefect asks for it."""
        return self.health.wrong(cast(Any, self.session), look_every_s=10.0)


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


def test_who_looks_at_no_pool_is_wrong_unless_prefect_is_away(world: World) -> None:
    world.now, world.session.answered_s = 301.0, 301.0
    world.health._turned_at = world.now
    assert world.wrong == []
    world.session.answered_s = 1.0
    assert world.wrong == ["it has not looked at the pool for 301 s, although Prefect answers"]
    world.health.looked()
    assert world.wrong == []


def test_work_that_does_nothing_but_fail_is_named(world: World) -> None:
    world.session.failing["news"] = Failing(0.0, 70.0, KeyError("a bug"))
    found: list[list[str]] = []
    asking = threading.Thread(target=lambda: found.append(world.wrong))
    asking.start()
    asking.join()
    assert found == [["news fails: KeyError('a bug')"]]
