"""An Engine that goes away, or is in trouble, in the moment in which a container has ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from docker.errors import APIError

from prefect_gpu.runtime.drivers.docker import handle as module
from prefect_gpu.runtime.drivers.docker.handle import ContainerHandle, Made

pytestmark = pytest.mark.timeout(60)  # what is looked for here is a wait without an end


class Engine:
    """In the place of an engine, which stands at the border of this machine.

    Attributes:
        trouble: What it answers when it is asked how the container ended, one after the other.
        kills: What it answers when it is asked to kill the container, one after the other; then it does.
    """

    def __init__(self, *trouble: Exception) -> None:
        self.trouble = list(trouble)
        self.kills: list[Exception] = []
        self.asked = 0
        self.ended = threading.Event()
        self.ended.set()

    def logs(self, *_: object, **__: object) -> Any:
        self.ended.wait()
        return SimpleNamespace(_stream=iter(()))

    def inspect_container(self, _: str) -> dict[str, Any]:
        self.asked += 1
        if self.asked > 1 and self.trouble:  # the first time, it says that the container has ended
            raise self.trouble.pop(0)
        return {"State": {"Running": not self.ended.is_set(), "ExitCode": 3}}

    def kill(self, *_: object, **__: object) -> None:
        if self.kills:
            raise self.kills.pop(0)
        self.ended.set()

    def remove_container(self, *_: object, **__: object) -> None:
        return None


def followed(engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ContainerHandle:
    monkeypatch.setattr(module, "_REACHED_AGAIN_S", 0.01)
    client: Any = SimpleNamespace(api=engine)
    made = Made("container", "node", "mark", 1)
    return ContainerHandle("run", folder, made, client, None, None, logging.getLogger("tests.away"))


_ANSWER: Any = SimpleNamespace(status_code=500)
TROUBLE = (
    APIError("500 Server Error", response=_ANSWER, explanation="context canceled"),
    requests.exceptions.ChunkedEncodingError("Connection broken: an Engine was killed as it spoke"),
    requests.exceptions.ConnectionError("Connection refused"),
)


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_an_engine_in_trouble_is_asked_again_how_a_container_ended(
    trouble: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = await followed(Engine(trouble, trouble), tmp_path, monkeypatch).wait()
    assert report.returncode == 3


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_an_engine_in_trouble_is_told_again_to_end_a_container(
    trouble: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has saved to give way would train on, and keep its device."""
    engine = Engine()
    engine.ended.clear()
    engine.kills = [trouble, trouble]
    await followed(engine, tmp_path, monkeypatch).stop(0)
    assert engine.ended.is_set() and not engine.kills


async def test_a_worker_that_ends_waits_for_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(*[requests.exceptions.ConnectionError("Connection refused")] * 100_000)
    handle = followed(engine, tmp_path, monkeypatch)
    while engine.asked < 3:  # noqa: ASYNC110 -- it is a thread that asks
        await asyncio.sleep(0.01)
    handle.release()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert len(engine.trouble) > 90_000, "it has been away all the time"


async def test_whoever_waits_for_an_engine_leaves_others_their_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are few, and all share them: they write down who may start, and look up the names of Prefect's servers."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    ends = followed(
        Engine(*[requests.exceptions.ConnectionError("Connection refused")] * 100_000), tmp_path, monkeypatch
    )
    runs = Engine()
    runs.ended.clear()
    runs.kills = [requests.exceptions.ConnectionError("Connection refused")] * 100_000
    stopped = followed(runs, tmp_path, monkeypatch)
    stopping = asyncio.create_task(stopped.stop(0))
    for _ in range(10):
        await asyncio.sleep(0.01)
        await asyncio.to_thread(lambda: None)
    assert not stopping.done() and not ends._watcher.done(), "they are still waiting"
    stopping.cancel()
    ends.release()
    stopped.release()
    runs.ended.set()
