"""The first process of a run's container: it starts the run's supervisor, and says on its output how all of it ended.

This file and the supervisor are put into the container when it is made, so that an image needs nothing of ours but
Python. As the first process, it alone gets the signals that are sent to a container, and hands SIGTERM on to the run;
when it ends, the kernel ends whatever is left. Hence the standard library only: ``python3 -I -S inside.py job.json``,
and in a container that waits for its job, ``inside.py job.json warm.json`` (see :mod:`.waiting`).

What it says are lines that begin with the launch's mark, a random word: JSON with ``started`` or ``error`` first, and
the supervisor's report as ``ended`` last.
"""

from __future__ import annotations

import json
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RUN = f"{HERE}/run"  # what the supervisor takes for the run's folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
try:
    from prefect_gpu.runtime.drivers import supervisor  # whoever puts this file into a container has it
except ImportError:
    sys.path.insert(0, HERE)
    import supervisor  # type: ignore[import-not-found,no-redef]  # in the container


def main() -> int:
    """Returns the container's exit code, as a shell would say it."""
    stopping: list[bool] = []

    def stop(*_: object) -> None:
        stopping.append(True)
        _hand_on()

    signal.signal(signal.SIGTERM, stop)
    interpreter = None
    if len(sys.argv) > 2:
        import waiting  # type: ignore[import-not-found]  # beside us

        interpreter = waiting.wait(sys.argv[2], stopping, _say)
    with open(sys.argv[1]) as file:
        job = {"id": 0, "run_dir": RUN, **json.load(file)}
    os.unlink(sys.argv[1])  # it may hold the run's secrets
    os.makedirs(RUN, exist_ok=True)
    os.symlink(f"/proc/{os.getpid()}/fd/1", f"{RUN}/{supervisor.OUTPUT}")  # the run's output is the container's
    first, child = _launch(job, interpreter)
    _say(job["mark"], {key: first[key] for key in ("started", "error", "cold") if key in first})
    if interpreter is not None:
        interpreter.go_on()
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


def _launch(job: dict[str, Any], interpreter: Any) -> tuple[dict[str, Any], int]:
    """Start the run's supervisor. Returns what it says of the start, and its pid.

    Args:
        interpreter: The warm one, which may become it; or None.
    """
    if interpreter is not None:
        said = interpreter.launch(job)
        if said is not None:
            return said, interpreter.pid
        said, child = _launch(job, None)
        return {**said, "cold": interpreter.why_cold}, child
    answer, reply = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        supervisor.begin(job, supervisor.supervise(job, reply, warm=False))
    os.close(reply)
    with open(answer) as lines:
        return json.loads(lines.readline() or '{"error": "its supervisor died"}'), child


def _hand_on() -> None:
    facts = supervisor.read_json(f"{RUN}/{supervisor.PROCESS}")
    if facts is not None:
        supervisor.send(facts["pid"], facts["start_ticks"], signal.SIGTERM)


def _say(mark: str, message: dict[str, Any]) -> None:
    """On a line of its own, also when the run's last line has no end."""
    os.write(1, f"\n{mark} {json.dumps(message)}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
