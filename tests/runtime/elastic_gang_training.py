"""An instance of a gang of any size, without any framework: all meet at instance 0, step by step.

A step takes as long as it is told, divided by the number of instances, and no time once there is the file ``hurry``.
Instance 0 notes ``[step, instances]`` of each step. Run by ``test_elastic_gangs``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path

from prefect_gpu.training import training_run


def main() -> None:
    told = json.loads(os.environ["GANG"])
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    peers = meet(rank, count)
    notes = os.open(told["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with training_run(steps=told["steps"], checkpoint_every=0.2) as run:
        state = run.restore(lambda path: json.loads(path.read_text()))
        run.step, weight = (state["step"], state["weight"]) if state else (0, 1.0)
        run.ready()

        def save(path: Path) -> None:
            path.write_text(json.dumps({"step": run.step, "weight": weight}))

        for step in run.steps():
            together(peers)
            weight -= 0.1 * weight * (1 + step % 3)
            if rank == 0:
                os.write(notes, (json.dumps([step, count]) + "\n").encode())
            time.sleep(0.0 if Path(told["hurry"]).exists() else told["step_s"] / count)
            run.report(loss=weight, checkpoint=save)
    if rank == 0:
        with run.saving():
            Path(told["result"]).write_text(repr(weight))


def meet(rank: int, count: int) -> list[socket.socket]:
    """Connections of instance 0 with all others, and of each of those with it."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        server = socket.create_server(address)
        return [server.accept()[0] for _ in range(count - 1)]
    while True:
        with contextlib.suppress(OSError):
            return [socket.create_connection(address, timeout=30)]
        time.sleep(0.05)


def together(peers: list[socket.socket]) -> None:
    """Wait until all are at this step."""
    for peer in peers:
        peer.sendall(b"x")
    for peer in peers:
        if not peer.recv(1):
            sys.exit(5)


if __name__ == "__main__":
    main()
