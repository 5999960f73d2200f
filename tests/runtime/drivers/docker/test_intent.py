"""What the first process of a container says to the engine there, heard by Prefect's own listener."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from prefect_gpu.runtime.drivers.intent import CANCELLED, RELINQUISHED, Listener
from prefect_gpu.worker.server.control import CONTROL_VARIABLES

ENGINE = """
import time
from prefect._internal import control_listener
from prefect.exceptions import TerminationSignal
from prefect.utilities.engine import capture_sigterm

try:
    with capture_sigterm():
        control_listener._negotiation_complete.wait(60)
        print("ready", flush=True)
        time.sleep(600)
except TerminationSignal:
    print(control_listener.get_intent(), flush=True)
"""


@contextmanager
def engine(variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that listens as Prefect's engine does; it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE], env=os.environ | variables, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("announced", "understood"), [(CANCELLED, "cancel\n"), (RELINQUISHED, "relinquish\n"), ("", "")]
)
def test_the_engine_knows_what_the_signal_means(announced: str, understood: str) -> None:
    listener = Listener()
    listener.listen()
    with engine(listener.variables(*CONTROL_VARIABLES)) as process:
        if announced:
            listener.say(announced)
            listener.say(CANCELLED)  # a second word says nothing more
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[0] == understood


def test_a_stranger_is_told_nothing() -> None:
    listener = Listener()
    listener.listen()
    port = int(listener.variables("port", "token")["port"])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"guess\n")
        assert stranger.recv(1) == b""
    listener.say(CANCELLED)
    with engine(listener.variables(*CONTROL_VARIABLES)) as process:
        listener.say(CANCELLED)
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[0] == "cancel\n"


def test_nobody_is_told_where_nobody_listens() -> None:
    Listener().say(CANCELLED)
