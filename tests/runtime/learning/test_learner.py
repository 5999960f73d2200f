"""Learning in the background, from a history that grows, is away, or holds nothing."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import TRAINING_S, FinishedRun, Known
from prefect_gpu.runtime.learning import learner as module
from prefect_gpu.runtime.learning.learner import Learner


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLE_S", 0.0)
    monkeypatch.setattr(module, "_REST", 0.0)


def runs(count: int) -> list[FinishedRun]:
    return [
        FinishedRun(f"r{at}", Known("train", {"n": at}), {TRAINING_S: 1.0 + at}, ended_at=at) for at in range(count)
    ]


class Bench:
    """A learner, what it reads, and what it has learned."""

    def __init__(self) -> None:
        self.history: list[FinishedRun] = []
        self.broken = False
        self.loop = asyncio.get_running_loop()
        self.reads: asyncio.Queue[str] = asyncio.Queue()  # names of the threads that read
        self.learned: asyncio.Queue[Estimator] = asyncio.Queue()
        self.learner = Learner(self._read, self.learned.put, logging.getLogger("test"))
        self.task = asyncio.create_task(self.learner.run())

    def _read(self) -> list[FinishedRun]:
        self.loop.call_soon_threadsafe(self.reads.put_nowait, threading.current_thread().name)
        if self.broken:
            raise RuntimeError("the database is away")
        return list(self.history)


async def test_it_learns_what_is_there_and_again_when_it_is_woken() -> None:
    bench = Bench()
    bench.history = runs(2)
    assert (await asyncio.wait_for(bench.learned.get(), 30)).learned_from == 2
    bench.history = runs(5)
    bench.learner.wake()
    assert (await asyncio.wait_for(bench.learned.get(), 30)).learned_from == 5
    assert await bench.reads.get() != threading.current_thread().name
    bench.task.cancel()


async def test_an_empty_history_teaches_nothing_and_costs_nothing() -> None:
    bench = Bench()
    await asyncio.wait_for(bench.reads.get(), 30)
    await asyncio.sleep(0.02)
    assert bench.learned.empty()
    bench.task.cancel()


async def test_a_history_that_is_away_is_said_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.broken = True
    await asyncio.wait_for(bench.reads.get(), 30)
    await asyncio.sleep(0.05)
    bench.broken, bench.history = False, runs(3)
    bench.learner.wake()
    assert (await asyncio.wait_for(bench.learned.get(), 30)).learned_from == 3
    assert "the database is away" in caplog.text
    bench.task.cancel()
