"""A controller for the run side's tests: the real channel server, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.channel import ChannelServer, new_token
from prefect_gpu.training import numbering, protocol, saver
from prefect_gpu.training.channel import link as link_module

PATIENCE = 60.0  # a hanging test fails after this; no test waits for it to pass


class Controller:
    """Records what one run reports. ``stop`` and ``start`` are a worker that dies and a new one that takes over."""

    def __init__(self, folder: Path, run_id: str = "run-1") -> None:
        self.run_id = run_id
        self.token = new_token()
        self.file = folder / "channel.json"
        self.checkpoints = folder / "checkpoints"
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.session: str | None = None
        self.server: ChannelServer | None = None
        self.before_event: Callable[[], object] = lambda: None
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self) -> None:
        self.server = ChannelServer(self._on_event, on_session=self._on_session)
        self.server.admit(self.run_id, self.token, session=self.session)
        self.call(self.server.start())
        self.file.write_text(json.dumps({"url": self.server.url}))

    def stop(self) -> None:
        if self.server is not None:
            self.call(self.server.close())
            self.server = None

    def cut(self) -> None:
        """Tear the run's connection apart, as a network does: no close frame, nothing flushed."""
        assert self.server is not None
        run = self.server._runs[self.run_id]
        if run.connection is not None:
            self._loop.call_soon_threadsafe(run.connection.transport.abort)

    def end(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def instruct(self, kind: str, **data: Any) -> bool:
        assert self.server is not None
        return bool(self.call(self.server.instruct(self.run_id, kind, data)))

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds; it is looked at after every event."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), self.events

    def data(self, kind: str) -> list[dict[str, Any]]:
        return [data for name, data in self.events if name == kind]

    @property
    def phases(self) -> list[str]:
        return [data["phase"] + ("*" if data.get("waiting") else "") for data in self.data(protocol.PHASE)]

    @property
    def losses(self) -> list[list[float]]:
        return [point for data in self.data(protocol.PROGRESS) for point in data["losses"]]

    @property
    def env(self) -> dict[str, str]:
        return {
            protocol.ENV_RUN_ID: self.run_id,
            protocol.ENV_TOKEN: self.token,
            protocol.ENV_CHANNEL_FILE: str(self.file),
            protocol.ENV_CHECKPOINTS: str(self.checkpoints),
        }

    def popen(self, code: str, **env: str) -> subprocess.Popen[str]:
        """A real training process inside the pool."""
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, **self.env, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.popen(code, **env)
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def _on_event(self, run_id: str, kind: str, at: float, data: dict[str, Any]) -> None:
        self.before_event()
        with self._changed:
            self.events.append((kind, data))
            self._changed.notify_all()

    def _on_session(self, run_id: str, session: str) -> None:
        with self._changed:
            self.session = session
            self._changed.notify_all()


def _forget_link() -> None:
    link, link_module._link = link_module._link, None
    if link is not None:
        link.client.close(timeout=0)


def as_another_process() -> None:
    """What begins from now on is the run's first training again, as in the process of its next try."""
    numbering.own = numbering.Numbering()


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins outside the pool."""
    for name in [name for name in os.environ if name.startswith("PREFECT_GPU_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(saver, "ENDS_WITHIN_S", 0.05)  # nobody stops these processes
    as_another_process()
    yield
    _forget_link()


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    """A controller that is listening; this process is not in its pool."""
    controller = Controller(tmp_path)
    controller.start()
    yield controller
    controller.end()


@pytest.fixture
def pool(controller: Controller, outside: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    """A controller, and this process is the run."""
    for name, value in controller.env.items():
        monkeypatch.setenv(name, value)
    yield controller
    _forget_link()
