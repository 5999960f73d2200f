"""A container that writes without end: the worker takes its output in bit by bit, and keeps little of it in memory."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prefect_gpu.runtime.drivers.docker.handle import ContainerHandle, Made

_BLOCK = b"".join(b"%0100d\n" % number for number in range(160))  # what an engine sends at once
_BLOCKS = 500


class Engine:
    """In the place of an engine, which stands at the border of this machine: it sends as fast as it is read."""

    def __init__(self) -> None:
        self.sent = 0
        self.all_sent = threading.Event()

    def logs(self, *_: object, stream: bool = False, **__: object) -> Any:
        return SimpleNamespace(_stream=self._blocks()) if stream else b""

    def inspect_container(self, _: str) -> dict[str, Any]:
        return {"State": {"Running": False, "ExitCode": 0}}

    def remove_container(self, *_: object, **__: object) -> None:
        return None

    def _blocks(self) -> Iterator[bytes]:
        for number in range(_BLOCKS):
            self.sent += 1
            yield b"2030-06-01T12:00:00.%09dZ " % number + _BLOCK
        self.all_sent.set()


async def test_a_flood_of_output_leaves_the_worker_its_turns(tmp_path: Path, monkeypatch: Any) -> None:
    engine, echoed = Engine(), 0

    def echo(_: str) -> None:
        nonlocal echoed
        echoed += 1

    monkeypatch.setattr(ContainerHandle, "_remove", lambda _: None)
    client: Any = SimpleNamespace(api=engine)
    logger = logging.getLogger("tests.flood")
    handle = ContainerHandle("run", tmp_path, Made("container", "node", "mark", 1), client, echo, None, logger)
    await asyncio.sleep(0)
    engine.all_sent.wait(0.5)  # the worker is busy elsewhere, and the run goes on writing
    assert engine.sent < _BLOCKS / 10, "what is not taken in stays with the engine"
    most, before = 0, echoed
    while not handle._watcher.done():
        await asyncio.sleep(0)
        most, before = max(most, echoed - before), echoed
    assert echoed == _BLOCKS * 160
    assert most <= 2 * 160, "so many lines were taken in while nobody else had a turn"
    assert len((await handle.wait()).tail) == 20
