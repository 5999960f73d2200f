"""The warm interpreter: it imports once what every run imports, and then becomes the runs by forking.

Started by :class:`prefect_gpu.runtime.drivers.warm.WarmInterpreter` as
``python -m prefect_gpu.runtime.drivers.zygote '{"preload": [...], "after_fork": "module:function"}'``. It speaks
one JSON object per line:

=============================================  ====================================================
from the driver                                answer
=============================================  ====================================================
(at start)                                     ``{"ready": true, "failed": {module: error}}`` or
                                               ``{"unfit": reason}``
``{"id", "run_dir", "argv", "env", "cwd",      ``{"id", "started": {...}}`` from the run's supervisor,
"cpus"}``                                      ``{"id", "cold": reason, "stale": bool}`` if this run has to be
                                               started cold, ``{"id", "error": message}``
=============================================  ====================================================

``{"id", "gone": true}`` says that a supervisor has ended. When its stdin closes, the driver is gone and
so is the warm interpreter; the runs that it has become live on.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import sys
from typing import Any

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.fork_compatibility import ForkCompatibility, unfit

PLACEHOLDER = "PREFECT_GPU_RUN_ID"  # started with 128 blanks in it; see _mark


class Zygote:
    """The warm interpreter between two forks: a single thread that waits for launches."""

    def __init__(self, requests: int, answers: int, compatibility: ForkCompatibility) -> None:
        self._requests, self._answers, self._compatibility = requests, answers, compatibility
        self._running: dict[int, tuple[int, int]] = {}  # a pipe that closes with the supervisor: its pid, job id
        self._unread = b""

    def say(self, message: dict[str, Any]) -> None:
        try:
            os.write(self._answers, (json.dumps(message) + "\n").encode())
        except OSError:
            os._exit(0)  # nobody listens any more

    def driver_is_gone(self) -> bool:
        """Whether the driver has closed its end (without reading what it has sent)."""
        poll = select.poll()
        poll.register(self._requests, 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def serve(self) -> tuple[dict[str, Any], int]:
        """Fork for every launch; returns in the forks only, with the job and the pipe that says it has begun."""
        while True:
            poll = select.poll()  # unlike epoll, nothing that a fork would share
            for fd in (self._requests, *self._running):
                poll.register(fd, select.POLLIN)
            ready = [fd for fd, _ in poll.poll()]
            for fd in ready:
                if fd != self._requests:
                    self._bury(fd)
            if self._requests not in ready:
                continue
            chunk = os.read(self._requests, 1 << 20)
            if not chunk:
                os._exit(0)
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            for line in lines:
                job = json.loads(line)
                trouble = self._launch(job)
                if trouble is not None:
                    return job, trouble

    def _launch(self, job: dict[str, Any]) -> int | None:
        stale = self._compatibility.stale()
        reason = stale or self._compatibility.difference(job["env"], job["cwd"])
        if reason is not None:
            self.say({"id": job["id"], "cold": reason, "stale": stale is not None})
            return None
        alive_read, alive_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(alive_read)
            os.close(alive_write)
            self.say({"id": job["id"], "cold": f"the warm interpreter cannot fork: {error}", "stale": False})
            return None
        if pid:
            os.close(alive_write)
            self._running[alive_read] = (pid, job["id"])
            return None
        for fd in (self._requests, alive_read, *self._running):
            os.close(fd)
        return supervisor.supervise(job, self._answers, warm=True, only_ours=(alive_write,))

    def _bury(self, fd: int) -> None:
        pid, job_id = self._running.pop(fd)
        os.close(fd)
        os.waitpid(pid, 0)
        self.say({"id": job_id, "gone": True})


def _mark(run_id: str, address: int | None, size: int) -> None:
    """Show the run's id in ``/proc/<pid>/environ``, where the kernel shows what the process was started with.

    The warm interpreter was started with blanks in that place, which its forks overwrite.
    """
    import ctypes

    value = run_id.encode()
    if address and 0 < len(value) <= size:
        ctypes.memmove(address, value.ljust(size, b"\0"), size)


def _find_mark() -> tuple[int | None, int]:
    import ctypes

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    return getenv(PLACEHOLDER.encode()), len(os.environ.get(PLACEHOLDER, ""))


def _given_environment() -> dict[str, str]:
    """The environment as it was given, before the interpreter changed anything in it."""
    with open("/proc/self/environ", "rb") as file:
        entries = (entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry)
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in entries}


def main() -> None:
    """Preload, serve, and in each fork run the module that was asked for."""
    supervisor.reset_signals()
    task = json.loads(sys.argv[1])
    # Preloaded modules may print and read: keep the pipes of the protocol out of their way.
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    mark = _find_mark()
    given = _given_environment()
    for environment in (given, os.environ):
        environment.pop(PLACEHOLDER, None)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # where the worker was started means nothing to a run
    compatibility = ForkCompatibility(given)
    zygote = Zygote(requests, answers, compatibility)
    failed: dict[str, str] = {}
    hook_module = [task["after_fork"].partition(":")[0]] if task["after_fork"] else []
    for name in (*task["preload"], *hook_module):
        if zygote.driver_is_gone():
            os._exit(0)
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"[:500]
    reason = unfit(frozenset((0, 1, 2, requests, answers)))
    if reason is not None:
        zygote.say({"unfit": reason})
        os._exit(0)  # not return: the interpreter would wait for those threads
    compatibility.loaded()
    gc.collect()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page that the forks share
    zygote.say({"ready": True, "failed": failed})

    job, trouble = zygote.serve()

    _mark(job["env"].get(PLACEHOLDER, ""), *mark)
    compatibility.become(
        job, task["after_fork"], lambda: os.close(trouble), lambda error: supervisor.refuse(trouble, error)
    )


if __name__ == "__main__":
    main()
