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

from prefect_gpu.runtime.drivers.intent import Listener
from prefect_gpu.worker.control import CONTROL_VARIABLES

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


@pytest.mark.parametrize("announced", [True, False])
def test_the_engine_knows_that_the_signal_is_a_cancellation(announced: bool) -> None:
    listener = Listener()
    listener.listen()
    with engine(listener.variables(*CONTROL_VARIABLES)) as process:
        if announced:
            listener.cancel()
            listener.cancel()  # a second signal says nothing more
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[0] == ("cancel\n" if announced else "")


def test_a_stranger_is_told_nothing() -> None:
    listener = Listener()
    listener.listen()
    port = int(listener.variables("port", "token")["port"])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"guess\n")
        assert stranger.recv(1) == b""
    listener.cancel()
    with engine(listener.variables(*CONTROL_VARIABLES)) as process:
        listener.cancel()
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[0] == "cancel\n"


def test_nobody_is_told_where_nobody_listens() -> None:
    Listener().cancel()
