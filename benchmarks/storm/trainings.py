"""What runs in the storm. Each says in one file what it does, and holds locks that show if two do it at a time."""

from __future__ import annotations

import fcntl
import json
import os
import random
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from prefect_gpu import training_run
from prefect_gpu.training import protocol

SAVED_EVERY_S = 1.0
_held: dict[str, int] = {}  # by this process, whichever try of its run it is
_LINE = "x" * 199 + "\n"


class Diary:
    """What one try of a run does, line by line in a file that all runs share.

    Args:
        folder: Of the storm.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._try = Path(folder), uuid.uuid4().hex[:8]
        self.run = str(flow_run.id)
        self.hold("run", self.run)

    def say(self, what: str, **facts: object) -> None:
        """Add a line; one write, so that lines of several runs stay whole."""
        line = {"at": time.monotonic(), "run": self.run, "try": self._try, "what": what, **facts}
        with open(self._folder / "diary", "a") as diary:
            diary.write(json.dumps(line) + "\n")

    def hold(self, kind: str, name: str) -> None:
        """Lock a thing for as long as this process lives, and say it if another process has it."""
        if name in _held:  # a try in the same process
            return
        file = os.open(self._folder / "locks" / f"{kind}-{name}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.say("clash", kind=kind, name=name, other=os.pread(file, 100, 0).decode())
            os.close(file)
            return
        os.ftruncate(file, 0)
        os.pwrite(file, self.run.encode(), 0)
        _held[name] = file

    def let_go(self, names: list[str]) -> None:
        """Unlock these things."""
        for name in names:
            if name in _held:
                os.close(_held.pop(name))


@flow(retries=100, retry_delay_seconds=0)
def fit(folder: str, steps: int, step_s: float) -> None:
    """A training with checkpoints, whose result depends on each step being done once and in order."""
    diary = Diary(folder)
    devices = [str(device["id"]) for device in json.loads(os.environ[protocol.ENV_DEVICES])]
    with training_run(steps=steps, checkpoint_every=SAVED_EVERY_S) as run:
        state = run.restore(lambda path: json.loads(path.read_text()))
        weight = state["weight"] if state else 1.0
        run.step = state["step"] if state else 0
        diary.say("begins", step=run.step)

        def save(path: Path) -> None:
            diary.say("saves", step=run.step)
            path.write_text(json.dumps({"weight": weight, "step": run.step}))

        run.ready()  # it returns when the devices are this run's
        for device in devices:
            diary.hold("device", device)
        for step in run.steps():
            weight = after(weight, step)
            time.sleep(step_s)
            run.report(loss=weight, checkpoint=save)
        diary.let_go(devices)  # who is saving has left them
    diary.say("ends", result=repr(weight))


def after(weight: float, step: int) -> float:
    """The weight after one more step."""
    return weight - 0.1 * weight * (1 + step % 3)


def result(steps: int) -> str:
    """What a training of so many steps must come to."""
    weight = 1.0
    for step in range(steps):
        weight = after(weight, step)
    return repr(weight)


@flow
def floods(folder: str, megabytes: int) -> None:
    """Prints as fast as it can."""
    diary = Diary(folder)
    diary.say("begins", step=0)
    for _ in range(megabytes * 5000):
        sys.stdout.write(_LINE)
    sys.stdout.flush()
    diary.say("ends", result="None")


@flow
def talks_nonsense(folder: str, seed: int) -> None:
    """Reports what no training would, and speaks to the controller in others' names and in no language at all."""
    diary, chance = Diary(folder), random.Random(seed)
    diary.say("begins", step=0)
    with training_run(steps=20) as run:
        run.ready()
        for _ in run.steps():
            odd = chance.choice([1e308 * 10, float("nan"), -1.0, 1e30, 0.0])
            named: dict[str, Any] = {f"key_{chance.randrange(10**6)}": odd}
            with suppress(ValueError, TypeError):  # a clear error is as good as taking it
                run.report(odd, **named)
            _forge(chance)
            time.sleep(0.05)
    diary.say("ends", result="None")


def _forge(chance: random.Random) -> None:
    run, token = os.environ[protocol.ENV_RUN_ID], os.environ[protocol.ENV_TOKEN]
    hello = {"type": "hello", "protocol": protocol.PROTOCOL_VERSION, "session": uuid.uuid4().hex}
    event = '{"type": "event", "seq": %s, "at": %s, "kind": "%s", "data": {"step": 1e999, "loss": %s}}'
    numbers = ("1", "-1", "1e999", "NaN", "null", "[]", "9" * 400)
    told = [
        json.dumps({**hello, "run": str(uuid.uuid4()), "token": "guess"}),
        json.dumps({**hello, "run": run, "token": token}),
        event % (*chance.choices(numbers, k=2), chance.choice(("phase", "progress", "usage", "?")), "1e999"),
        chance.choice(("{", "[]", "null", '"hello"', "[" * 5000, "x" * 300_000)),
    ]
    chance.shuffle(told)
    with suppress(OSError, WebSocketException), connect(os.environ[protocol.ENV_CHANNEL], open_timeout=2.0) as one:
        for frame in told:
            one.send(frame)
