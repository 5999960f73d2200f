"""What the controller has asked of this process: written by the channel's thread, obeyed by the training's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from prefect_gpu.training.limits import cpus
from prefect_gpu.training.protocol import GO_ON, OPEN_GATE, SAVE_CHECKPOINT, SET_SHARE, STOP, USE_CPUS


class Mailbox:
    """The instructions that are still to be obeyed. One per process: a STOP holds for a second training run too.

    Attributes:
        gate: Set when the run may use the device (or has to stop: then it must not wait any longer).
        pending: Whether ``report()`` has anything to look at; the only thing that it reads on its fast path.
        stop: Why the run should stop, or None.
        save: Why a checkpoint is wanted, or None.
        threads: How many threads numeric libraries should use from now on, or None.
        weight: Part of the time for which the run should train, 0 to 1.
        go_on: Called when the user's wish to suspend the run was refused.
        news: Set when an instruction has come; whoever waits clears it first.
    """

    def __init__(self, *, gated: bool = False) -> None:
        self.gate = threading.Event()
        if not gated:
            self.gate.set()
        self.pending = False
        self.stop: str | None = None
        self.save: str | None = None
        self.threads: int | None = None
        self.weight = 1.0
        self.go_on: Callable[[], None] = lambda: None
        self.news = threading.Event()

    @property
    def urgent(self) -> bool:
        """Whether somebody waits for a report of this run, as it is to save or to stop."""
        return self.stop is not None or self.save is not None

    def put(self, kind: str, data: dict[str, Any]) -> None:
        """Take an instruction in. Unknown kinds are ignored: a newer controller may know more words."""
        if kind == OPEN_GATE:
            self.gate.set()
        elif kind == SAVE_CHECKPOINT:
            self.save = str(data.get("reason") or "asked by the controller")
            self.pending = True
        elif kind == STOP:
            self.stop = str(data.get("reason") or "stopped by the controller")
            self.pending = True
            self.gate.set()
        elif kind == USE_CPUS:
            cores = cpus.valid(data.get("cpus"))
            if cores:
                cpus.bind(cores)
                # OpenMP's thread count belongs to the thread that sets it, so the training has to.
                self.threads = len(cores)
                self.pending = True
        elif kind == SET_SHARE:
            weight = data.get("weight")
            if isinstance(weight, (int, float)) and not isinstance(weight, bool) and 0 <= weight <= 1:
                self.weight = float(weight)
        elif kind == GO_ON:
            self.go_on()
        self.news.set()
