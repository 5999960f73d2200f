"""A session that cannot be opened now may be opened later."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker import session as sessions
from prefect_gpu.worker.from_blocks import Chosen
from prefect_gpu.worker.nodes.infrastructure import Infrastructure
from prefect_gpu.worker.session import REFUSALS, PoolSession
from prefect_gpu.worker.setup_error import SetupError
from prefect_gpu.worker.worker import GpuWorker
from tests.runtime.stand_ins import MemoryDriver


def worker_of(pool: object, client: object) -> Any:
    return SimpleNamespace(
        client=client,
        work_pool=pool,
        name="w",
        type="gpu",
        _work_pool_name="pool",
        _work_queues=set(),
        get_flow_run_logger=None,
    )


async def test_a_pool_of_another_type_is_not_served(tmp_path: Path) -> None:
    """Prefect only warns. The template of such a pool drops what runs ask for."""
    pool = SimpleNamespace(name="local", id=uuid4(), type="process")
    session = PoolSession(worker_of(pool, None), GpuSettings(state_dir=tmp_path), lambda *_: None)
    with pytest.raises(SetupError, match=r"'local' is of the type 'process'.*work-pool create NAME --type gpu"):
        await session.open()
    await session.close()


async def test_a_session_whose_nodes_were_out_of_reach_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its channel's port must be free then, and nobody else may follow the runs that had been taken over already."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    drivers: list[MemoryDriver] = []
    (tmp_path / "notice").write_text("2031-01-01T00:00Z")
    leaving: list[float] = []

    troubles = [LaunchError("the engine is out of reach"), OSError(errno.ENOSPC, "No space left on device")]
    said = ["out of reach", f"{tmp_path} cannot be written: No space left on device. Make room there, or name another"]

    class AwayDriver(MemoryDriver):
        async def start(self) -> None:
            leaving.append(session.controller.fleet.leaving[""][0])
            raise troubles[len(leaving) - 1]

    def place(*_: object) -> Infrastructure:
        drivers.append(AwayDriver())
        return Infrastructure(drivers[-1])

    async def blocks(settings: GpuSettings, _: object) -> Chosen:
        return Chosen(settings)

    monkeypatch.setattr(sessions, "infrastructure_of", place)
    monkeypatch.setattr(sessions, "read_blocks", blocks)
    monkeypatch.setattr(sessions, "folder_of_all", lambda _: None)
    hooks: dict[str, list[Any]] = {"request": [], "response": []}
    client = SimpleNamespace(_client=SimpleNamespace(event_hooks=hooks))
    pool = SimpleNamespace(name="pool", id=uuid4(), type="gpu")
    worker = worker_of(pool, client)
    settings = GpuSettings(state_dir=tmp_path, channel_port=port, notice_file=tmp_path / "notice")
    session = PoolSession(worker, settings, lambda *_: None)
    for words in said:  # a full disk was a traceback, and the end of the worker
        with pytest.raises(REFUSALS, match=words):
            await session.open()
    assert leaving == [1924992000.0] * 2, "that the machine is about to go is known before anything starts"
    assert len(session._stack._exit_callbacks) <= 1, "one channel to engines is enough"  # type: ignore[attr-defined]
    await session.close()


async def test_a_worker_whose_state_folder_cannot_be_made_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PREFECT_INTEGRATIONS_GPU_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(SystemExit, match=r"cannot start: .*/file/state cannot be written: Not a directory\. See that"):
        await GpuWorker(work_pool_name="pool").start()
