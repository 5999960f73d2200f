"""An Engine that goes away, or is in trouble, in the moment in which a container has ended."""

from __future__ import annotations

import asyncio
import logging
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
    """

    def __init__(self, *trouble: Exception) -> None:
        self.trouble = list(trouble)
        self.asked = 0

    def logs(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(_stream=iter(()))

    def inspect_container(self, _: str) -> dict[str, Any]:
        self.asked += 1
        if self.asked > 1 and self.trouble:  # the first time, it says that the container has ended
            raise self.trouble.pop(0)
        return {"State": {"Running": False, "ExitCode": 3}}

    def remove_container(self, *_: object, **__: object) -> None:
        return None


def followed(engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ContainerHandle:
    monkeypatch.setattr(module, "_REACHED_AGAIN_S", 0.01)
    client: Any = SimpleNamespace(api=engine)
    made = Made("container", "node", "mark", 1)
    return ContainerHandle("run", folder, made, client, None, None, logging.getLogger("tests.away"))


@pytest.mark.parametrize(
    "trouble",
    [
        APIError("500 Server Error", explanation="context canceled"),
        requests.exceptions.ChunkedEncodingError("Connection broken: an Engine was killed as it spoke"),
        requests.exceptions.ConnectionError("Connection refused"),
    ],
)
async def test_an_engine_in_trouble_is_asked_again_how_a_container_ended(
    trouble: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = await followed(Engine(trouble, trouble), tmp_path, monkeypatch).wait()
    assert report.returncode == 3


async def test_a_worker_that_ends_waits_for_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(*[requests.exceptions.ConnectionError("Connection refused")] * 100_000)
    handle = followed(engine, tmp_path, monkeypatch)
    while engine.asked < 3:  # noqa: ASYNC110 -- it is a thread that asks
        await asyncio.sleep(0.01)
    handle.release()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert len(engine.trouble) > 90_000, "it has been away all the time"
