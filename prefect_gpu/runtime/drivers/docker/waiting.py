"""Inside a container that waits for its run: an interpreter that has imported beforehand what runs import.

Put into such containers beside :mod:`.inside`. The container's first process calls :func:`wait`; its child, the warm
interpreter, is this file as a script, ``python waiting.py warm.json <pipe> <pipe>``. Once the container is given a job
and told to begin, the warm interpreter becomes the run's supervisor and, by forking, the run. It does so only if the
run could not tell (:mod:`prefect_gpu.runtime.drivers.fork_compatibility`); else the run is started cold, in the same
container.

``warm.json``, in which nothing is secret: ``mark``, ``program`` and ``env`` of the interpreter, ``preload`` and
``after_fork`` as in :mod:`prefect_gpu.runtime.drivers.zygote`, ``keep_free`` (the part of the machine's memory that
stays free, else nobody waits) and ``idle_s``. Standard library only.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RUN = f"{HERE}/run"  # what the supervisor takes for the run's folder

if __package__:
    from prefect_gpu.runtime.drivers import fork_compatibility, supervisor
else:  # in the container, whose image may hold another version of the package
    if HERE not in sys.path[:1]:
        sys.path.insert(0, HERE)
    import fork_compatibility  # type: ignore[no-redef,import-not-found,unused-ignore]
    import supervisor  # type: ignore[no-redef,import-not-found,unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BEGIN = signal.SIGUSR1  # what tells the container's first process that its job is there
GAVE_WAY = 75  # exit code of a container that nobody needed, or that gave up its memory
_LOOK_MS = 2000


# ---- the container's first process ----------------------------------------------------------------------------


def wait(path: str, stopping: list[bool], say: Callable[[str, dict[str, Any]], None]) -> Interpreter:
    """Wait for the job. It is there when this returns; if none comes, or it is of no use to wait, the container ends.

    Args:
        path: Of ``warm.json``.
        stopping: Not empty as soon as the container is to end.
        say: Given the mark and what there is to say: ``ready``, ``unfit`` or ``tight``.
    """
    with open(path) as file:
        task = json.load(file)
    began: list[bool] = []
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(BEGIN, lambda *_: began.append(True))  # stays: a second one, of a worker that takes over, is nothing
    interpreter, until = None, time.monotonic() + task["idle_s"]
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    while not began or interpreter is None:
        if is_tight(task["keep_free"]):
            say(task["mark"], {"tight": True})
            _leave(GAVE_WAY, began)
        elif stopping or time.monotonic() > until:
            _leave(GAVE_WAY, began)
        if interpreter is None:
            interpreter = Interpreter(task, path)
            poll.register(interpreter.answers, select.POLLIN)
        elif any(fd != woken for fd, _ in poll.poll(_LOOK_MS)):
            said = interpreter.read()
            if said is not None:
                say(task["mark"], said)
            if said is None or "ready" not in said:
                _leave(GAVE_WAY if said is not None else 1, began)
    signal.set_wakeup_fd(-1)
    os.close(woken)
    os.close(wake)
    return interpreter


def _leave(code: int, began: list[bool]) -> None:
    """End the container, unless it has been told to begin: then this returns, and whoever told it need not know."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (BEGIN,))
    if BEGIN not in signal.sigpending() and not began:
        os._exit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (BEGIN,))


class Interpreter:
    """The warm interpreter, as the container's first process has it.

    Args:
        task: The content of ``warm.json``.
        path: Where it is.
    """

    def __init__(self, task: dict[str, Any], path: str) -> None:
        requests, self._requests = os.pipe()
        self.answers, answers = os.pipe()
        self.why_cold = ""
        self._unread = b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for fd in (requests, answers):
                    os.set_inheritable(fd, True)
                arguments = [task["program"], f"{HERE}/waiting.py", path, str(requests), str(answers)]
                os.execvpe(task["program"], arguments, task["env"])
            finally:
                os._exit(127)
        os.close(requests)
        os.close(answers)

    def read(self) -> dict[str, Any] | None:
        """What it says next; None if it has died."""
        while b"\n" not in self._unread:
            chunk = os.read(self.answers, 1 << 16)
            if not chunk:
                return None
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def launch(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Let it become the run.

        Returns:
            What its supervisor, which has its pid, says of the start; None: it is gone, and nothing was started.
        """
        try:
            with open(self._requests, "wb", closefd=False) as pipe:
                pipe.write(json.dumps(job).encode() + b"\n")
        except BrokenPipeError:
            pass  # it has died: there will be no answer
        said = self.read()
        os.close(self.answers)
        if said is None and os.path.exists(f"{RUN}/{supervisor.CLAIM}"):
            return {"error": "its supervisor died"}
        if said is not None and "cold" not in said:
            return said
        self.why_cold = said["cold"] if said is not None else "the warm interpreter died"
        os.waitpid(self.pid, 0)
        return None

    def go_on(self) -> None:
        """Let the run write its first line."""
        os.close(self._requests)


def is_tight(keep_free: float) -> bool:
    """Whether less than this part of the machine's memory is free, or could be at once."""
    try:
        with open("/proc/meminfo") as file:
            sizes = {line.split(":")[0]: int(line.split()[1]) for line in file}
        return sizes["MemAvailable"] < keep_free * sizes["MemTotal"]
    except (OSError, KeyError, ValueError):
        return False


# ---- the warm interpreter ---------------------------------------------------------------------------------------


def main() -> None:
    """Import what is to be imported, wait for the job, and become it."""
    path, requests, answers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for fd in (requests, answers):
        os.set_inheritable(fd, False)
    with open(path) as file:
        task = json.load(file)
    nothing = os.open(os.devnull, os.O_RDWR)  # what modules print as they are imported is nobody's output
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    while HERE in sys.path:  # a run must neither find our files nor be hidden its own by them
        sys.path.remove(HERE)
    for name in ("fork_compatibility", "supervisor"):
        sys.modules.pop(name, None)
    like = fork_compatibility.ForkCompatibility(task["env"])
    hook = task["after_fork"].partition(":")[0] if task["after_fork"] else None
    failed: dict[str, str] = {}
    for name in (*task["preload"], *([hook] if hook else ())):
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"[:500]
    reason = fork_compatibility.unfit(frozenset((0, 1, 2, requests, answers)))
    if hook in failed:
        reason = f"the image has no {hook} that can be imported ({failed[hook]})"
    if reason is not None:
        _answer(answers, {"unfit": reason})
        os._exit(0)  # not return: the interpreter would wait for threads
    like.loaded()
    gc.collect()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page that supervisor and run share
    _answer(answers, {"ready": {"failed": failed}})
    unread = b""
    while not unread.endswith(b"\n"):
        chunk = os.read(requests, 1 << 20)
        if not chunk:
            os._exit(0)
        unread += chunk
    job = json.loads(unread)
    unlike = fork_compatibility.unlike_warm(job["argv"], job["env"], job["cwd"])
    why = like.stale() or (unlike[0] if unlike else None) or like.difference(job["env"], job["cwd"])
    if why is not None:
        _answer(answers, {"cold": why})
        os._exit(0)
    trouble = supervisor.supervise(job, answers, warm=True)

    def begins() -> None:
        os.close(trouble)
        os.read(
            requests, 1
        )  # until the container's first process has said so: it must not do that within our first line
        os.close(requests)

    like.become(job, task["after_fork"], begins, lambda error: supervisor.refuse(trouble, error))


def _answer(answers: int, message: dict[str, Any]) -> None:
    os.write(answers, (json.dumps(message) + "\n").encode())


if __name__ == "__main__":
    main()
