"""The first process of a run's container: it starts the run's supervisor, and says on its output how all of it ended.

This file, the supervisor, :mod:`.cut_off` and :mod:`.intent` are put into the container when it is made, so that an
image needs nothing of ours but Python; hence the standard library only: ``python3 -I -S inside.py job.json``. As the
first process, it alone gets the signals that are sent to a container. The worker's :data:`STOP` is handed on to the run
as SIGTERM. A SIGTERM comes from an Engine that is shut down, or from ``docker stop``: the run is then over at once, and
lost, before it could tell Prefect of an end that is none of its own. When this process ends, the kernel ends whatever
is left.

What it says are lines that begin with the launch's mark, a random word: JSON with ``started`` or ``error`` first, and
the supervisor's report as ``ended`` last. It also ends the run if its node is cut off (:mod:`.cut_off`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RUN = f"{HERE}/run"  # what the supervisor takes for the run's folder
STOP = signal.SIGUSR1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
try:
    from prefect_gpu.runtime.drivers import supervisor  # whoever puts this file into a container has it
    from prefect_gpu.runtime.drivers.docker import cut_off, intent
except ImportError:
    sys.path.insert(0, HERE)
    import cut_off  # type: ignore[import-not-found,no-redef]  # in the container
    import intent  # type: ignore[import-not-found,no-redef]
    import supervisor  # type: ignore[import-not-found,no-redef]

_STOPPED = "Its container was stopped from outside: its node's Engine was shut down, or somebody stopped the container."


def main() -> int:
    """Returns the container's exit code, as a shell would say it."""
    with open(sys.argv[1]) as file:
        job = json.load(file)
    os.unlink(sys.argv[1])  # it may hold the run's secrets
    os.makedirs(RUN, exist_ok=True)
    os.symlink(f"/proc/{os.getpid()}/fd/1", f"{RUN}/{supervisor.OUTPUT}")  # the run's output is the container's
    stopping: list[bool] = []
    listener = intent.Listener() if job["told_at"] else None
    if listener is not None:
        job["env"] |= listener.variables(*job["told_at"])

    def stop(*_: object) -> None:
        stopping.append(True)
        if listener is not None and os.path.exists(f"{HERE}/{intent.CANCELLED}"):
            listener.cancel()
        _hand_on()

    signal.signal(STOP, stop)
    signal.signal(signal.SIGTERM, lambda *_: _lose(job, _STOPPED))
    answer, reply = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(STOP, signal.SIG_DFL)
        if listener is not None:
            listener.close()
        trouble = supervisor.supervise({"id": 0, "run_dir": RUN, **job}, reply, warm=False)
        supervisor.begin(job, trouble)
    os.close(reply)
    if listener is not None:
        listener.listen()
    with open(answer) as lines:
        first = json.loads(lines.readline() or '{"error": "its supervisor died"}')
    _say(job["mark"], {key: first[key] for key in ("started", "error") if key in first})
    threading.Thread(target=_end_if_cut_off, args=(job,), daemon=True).start()
    if stopping:
        _hand_on()  # it may have come too early to reach anybody
    ended = None
    while ended != child:
        ended, _ = os.wait()
    report = supervisor.read_json(f"{RUN}/{supervisor.EXIT}")
    if report is None:
        return 128 + signal.SIGKILL  # the supervisor was killed; the rest dies with us
    _say(job["mark"], {"ended": report})
    code = report["returncode"]
    return code if code >= 0 else 128 - code


def _hand_on() -> None:
    facts = supervisor.read_json(f"{RUN}/{supervisor.PROCESS}")
    if facts is not None:
        supervisor.send(facts["pid"], facts["start_ticks"], signal.SIGTERM)


def _end_if_cut_off(job: dict[str, Any]) -> None:
    """End the container, and with it the run, once nobody is reached any more: see :mod:`.cut_off`."""
    seconds = cut_off.CutOff(HERE, job["env"].get("PREFECT_GPU_CHANNEL", "")).wait()
    cause = (
        f"Its node was cut off, or stood still, for {seconds:.0f} s: it reached neither the worker nor any other node "
        "of the Swarm, so that its run was taken for lost."
    )
    _lose(job, cause)


def _lose(job: dict[str, Any], cause: str) -> None:
    ended = {"returncode": None, "max_rss_bytes": None, "cpu_seconds": None, "ended_at": time.time()}
    _say(job["mark"], {"ended": {**ended, "cause": cause, "lost": True}})
    os._exit(128 + signal.SIGKILL)


def _say(mark: str, message: dict[str, Any]) -> None:
    """On a line of its own, also when the run's last line has no end."""
    os.write(1, f"\n{mark} {json.dumps(message)}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
