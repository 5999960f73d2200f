"""What a container writes is taken in once and whole, wherever a busy Engine ends the log that is followed."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_gpu.runtime.drivers.docker import handle as module
from prefect_gpu.runtime.drivers.docker.handle import ContainerHandle, Made

_ENDED = {"returncode": 3, "max_rss_bytes": 1, "cpu_seconds": 0.1, "ended_at": 1.0}
_LINES = [b"\n", b'mark {"started": 1}\n', b"3\n", b"3\n", b"\n", f"mark {json.dumps({'ended': _ENDED})}\n".encode()]


class Engine:
    """In the place of an engine, which stands at the border of this machine: of a log that is followed it sends a part.

    Attributes:
        ends: After how many pieces it ends the log each time.
    """

    def __init__(self, ends: tuple[int, ...]) -> None:
        self.ends = list(ends)
        began = time.time_ns() - 10**10
        self._written = [(began + at, line) for at, line in zip((0, 1, 10, 10, 20, 30), _LINES, strict=True)]

    def logs(self, *_: object, stream: bool = False, follow: bool | None = None, **how: Any) -> Any:
        sent = self._written[: self.ends.pop(0) if stream and follow is not False else None]
        if how.get("tail", "all") != "all":
            sent = sent[-how["tail"] :]
        pieces = self._pieces(sent, how.get("since") or 0, bool(how.get("timestamps")))
        return SimpleNamespace(_stream=pieces) if stream else b"".join(pieces)

    def inspect_container(self, _: str) -> dict[str, Any]:
        return {"State": {"Running": bool(self.ends), "ExitCode": 3}}

    def _pieces(self, sent: list[tuple[int, bytes]], since: float, timed: bool) -> Iterator[bytes]:
        for at, line in sent:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 10**9)) + f".{at % 10**9:09}Z "
            if at >= since * 10**9:
                yield stamp.encode() * timed + line


@pytest.mark.parametrize("ends", list(itertools.combinations_with_replacement(range(7), 2)))
async def test_an_engine_that_ends_the_log_early_loses_and_repeats_nothing(
    ends: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echoed: list[str] = []
    monkeypatch.setattr(ContainerHandle, "_remove", lambda _: None)
    client: Any = SimpleNamespace(api=Engine(ends))
    made = Made("container", "node", "mark", 1)
    handle = ContainerHandle("run", tmp_path, made, client, echoed.append, None, logging.getLogger("tests.log"))
    report = await handle.wait()
    assert (report.tail, echoed, report.max_rss_bytes) == (("3", "3"), ["3", "3"], 1)


async def test_a_log_that_the_engine_cannot_read_ends_with_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a loss of power, may leave something in it that is no line."""
    monkeypatch.setattr(module, "_REACHED_AGAIN_S", 0.01)
    monkeypatch.setattr(ContainerHandle, "_remove", lambda _: None)
    complaint, echoed, engine = "Error grabbing logs: invalid character '\\x00'", list[str](), Engine((3, 3, 3))
    pieces = engine._pieces

    def broken(*arguments: Any) -> Iterator[bytes]:
        yield from pieces(*arguments)
        if engine.ends:
            yield f"{complaint}\n".encode()

    monkeypatch.setattr(engine, "_pieces", broken)
    client: Any = SimpleNamespace(api=engine)
    made = Made("container", "node", "mark", 1)
    handle = ContainerHandle("run", tmp_path, made, client, echoed.append, None, logging.getLogger("tests.log"))
    report = await handle.wait()
    assert (echoed, report.returncode) == (["3", complaint, "3"], 3)
