"""An instance of a gang without any framework: all meet at instance 0, step by step. Run by ``test_gang``."""

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
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PREFECT_GPU_ROLE", "PREFECT_GPU_SERVERS")
    devices = [device["id"] for device in json.loads(os.environ["PREFECT_GPU_DEVICES"])]
    facts = {name: os.environ[name] for name in names} | {"devices": devices, "pid": os.getpid()}
    Path(told["folder"], f"rank-{rank}.json").write_text(json.dumps(facts))
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        server = socket.create_server(address)
        peers = [server.accept()[0] for _ in range(count - 1)]
    else:
        peers = [_connect(address)]
    with training_run(steps=told["steps"]) as run:
        state = run.restore(lambda path: path.read_text())
        run.step = int(state) if state else 0
        run.ready()
        for step in run.steps():
            for peer in peers:
                peer.sendall(b"x")
            for peer in peers:
                if not peer.recv(1):
                    sys.exit(5)
            broken = Path(told["folder"], "broken")
            if rank == told["breaks"] and step == told["steps"] // 2 and not broken.exists():
                broken.touch()
                os._exit(9)
            time.sleep(0.01)
            run.report(loss=1.0 / (1 + step), checkpoint=lambda path: path.write_text(str(run.step)))
    with run.saving():
        Path(told["folder"], f"done-{rank}").touch()


def _connect(address: tuple[str, int]) -> socket.socket:
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection(address, timeout=30)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
