"""What the controller has asked of this process: written by the channel's thread, obeyed by the training's."""

from __future__ import annotations

import threading
from typing import Any

from prefect_gpu.training import cpus
from prefect_gpu.training.protocol import OPEN_GATE, SAVE_CHECKPOINT, STOP, USE_CPUS


class Mailbox:
    """The instructions that are still to be obeyed. One per process: a STOP holds for a second training run too.

    Attributes:
        gate: Set when the run may use the device (or has to stop: then it must not wait any longer).
        pending: Whether ``report()`` has anything to look at; the only thing that it reads on its fast path.
        stop: Why the run should stop, or None.
        save: Why a checkpoint is wanted, or None.
        threads: How many threads numeric libraries should use from now on, or None.
    """

    def __init__(self, *, gated: bool = False) -> None:
        self.gate = threading.Event()
        if not gated:
            self.gate.set()
        self.pending = False
        self.stop: str | None = None
        self.save: str | None = None
        self.threads: int | None = None

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
