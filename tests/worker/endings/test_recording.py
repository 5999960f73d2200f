"""Rows get into the history whatever becomes of it meanwhile, and nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

import psycopg
import pytest

from prefect_gpu.storage.history import History, HistoryRow
from prefect_gpu.worker.endings import recording
from prefect_gpu.worker.endings.recording import Recorder
from tests.postgres import PostgresServer

LOGGER = logging.getLogger("test")


def row(run_id: str) -> HistoryRow:
    return HistoryRow(run_id, "train", "completed", ended_at=1.0, launch=run_id)


@pytest.mark.needs("postgresql")
async def test_a_database_that_is_cut_off_and_comes_back_gets_every_row_once(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "_PAUSE_S", 0.01)
    url = postgres.make("cut_off")
    recorder, told = Recorder(url, tmp_path, LOGGER), asyncio.Queue[None]()
    task = asyncio.create_task(recorder.run(lambda: told.put_nowait(None)))
    recorder.keep(row("before"))
    await asyncio.wait_for(told.get(), 60)
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute("ALTER DATABASE cut_off WITH ALLOW_CONNECTIONS false")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'cut_off'")
        for name in ("one", "two"):
            recorder.keep(row(name))
        while "cannot be used" not in caplog.text:  # noqa: ASYNC110  (it is said in a log)
            await asyncio.sleep(0.01)
        assert len(os.listdir(tmp_path)) == 2
        admin.execute("ALTER DATABASE cut_off WITH ALLOW_CONNECTIONS true")
    await asyncio.wait_for(told.get(), 60)
    with History(url, read_only=True) as history:
        assert sorted(found.run_id for found in history.rows()) == ["before", "one", "two"]
    assert not os.listdir(tmp_path)
    assert postgres.password not in caplog.text
    task.cancel()
    await recorder.close()
    postgres.drop("cut_off")


async def test_a_database_that_does_not_answer_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_LAST_TRY_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and says nothing
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/runs?connect_timeout=3600"
        recorder = Recorder(url, tmp_path, LOGGER)
        task = asyncio.create_task(recorder.run(None))
        recorder.keep(row("one"))
        await asyncio.sleep(0.1)  # it tries meanwhile
        task.cancel()
        await recorder.close()
    assert len(os.listdir(tmp_path)) == 1, "the next worker has it"
