"""What a training says is where its user looks: in the flow run's log."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest
from prefect.logging import handlers
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from prefect_gpu.training import forks, training_run
from prefect_gpu.training.protocol import ENV_RESTORES_ONLY, ENV_RUN_ID

LOGGER = logging.getLogger("prefect_gpu.training")
RUN = str(uuid4())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What Prefect's handler would send to its server, in a process of the pool's."""
    logs: list[dict[str, Any]] = []
    monkeypatch.setattr(handlers, "emit_api_log", logs.append)
    monkeypatch.setattr(LOGGER, "handlers", [])
    monkeypatch.setenv(ENV_RUN_ID, RUN)
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", RUN)
    with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: True}):
        yield logs


def diverge() -> None:
    with training_run(steps=1, on_nonfinite="warn") as run:
        for _ in run.steps():
            run.report(loss=float("nan"))


def test_a_warning_is_in_the_run_s_log_once_whichever_thread_says_it(sent: list[dict[str, Any]]) -> None:
    diverge()
    thread = Thread(target=diverge)
    thread.start()
    thread.join()
    assert [(log["flow_run_id"], log["name"]) for log in sent] == [(RUN, LOGGER.name)] * 2
    assert all("loss=nan at step 1 is not a finite number; training goes on" in log["message"] for log in sent)


def test_only_one_instance_of_a_gang_speaks_there(sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_RESTORES_ONLY, "1")
    diverge()
    assert sent == []


def test_outside_of_the_pool_nothing_is_sent(sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_RUN_ID)
    diverge()
    assert sent == []


def test_who_has_named_the_logger_to_prefect_gets_no_line_twice(
    sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = handlers.APILogHandler()
    monkeypatch.setattr(own, "emit", lambda record: sent.append({"message": record.getMessage()}))
    LOGGER.addHandler(own)
    diverge()
    assert len(sent) == 1


FORKS = """
import multiprocessing, warnings
import prefect.logging.handlers
from prefect._internal.concurrency.services import QueueService
from prefect_gpu.training import training_run

class Logs(QueueService):  # what sends a flow's logs is one
    async def _handle(self, item):
        pass

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns whoever forks beside a thread
with training_run(steps=1) as run:
    for step in run.steps():
        Logs.instance().send("sent in the end")
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
        print(child.exitcode)
"""


def test_children_that_a_run_forks_end_well_also_where_it_has_no_channel(sent: list[dict[str, Any]]) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.parametrize("keep", [lambda call: partial(call), lambda func: lambda: func()], ids=["before 3.14", "3.14"])
def test_what_a_child_forgets_is_found_however_python_keeps_it(
    keep: Callable[[Callable[[], Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [keep(threading.Event().set), keep(threading.active_count)]
    monkeypatch.setattr(threading, "_threading_atexits", kept := list(calls))
    forks._forget()
    assert kept == calls[1:]
