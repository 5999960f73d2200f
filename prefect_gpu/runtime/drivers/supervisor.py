"""The supervisor of one run: it starts the run's process, waits for it, cleans up behind it and reports its end.

It is what makes a run independent of the worker: it has a session of its own, it writes all that a later worker
needs into the run's folder, and it is the *subreaper* of the run, so that whatever the run leaves behind
becomes its child and can be ended. A cold start runs this file as a script (``python -I -S supervisor.py``, the job
as JSON on stdin); a warm start calls :func:`supervise` in a fork of the warm interpreter. Hence the standard library
only, and as little of it as possible: no ``typing``, no package imports.

The run's folder:

================  =====================================================================================
``claim``         made once, by whoever comes first: a supervisor that may start the run, or a worker that
                  revokes the launch. A launch that was revoked can never start.
``process.json``  written before the run's process may do anything: without it, nothing ever ran.
``output.log``    stdout and stderr of the run, in order.
``exit.json``     written when the process and everything it started are gone. Its place on the disk is taken
                  as the run starts (``exit.json.reserved``), so that it can be written on a full one.
================  =====================================================================================
"""

from __future__ import annotations

import collections
import ctypes
import errno
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, NoReturn

CLAIM, PROCESS, EXIT, OUTPUT = "claim", "process.json", "exit.json", "output.log"
LEFTOVER_GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL, for what outlives the run's main process

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that is full, or of which this user has had enough."""

_RESERVED, _RESERVED_BYTES = ".reserved", 4096
_PR_SET_CHILD_SUBREAPER = 36
# What a terminal, a service manager or a clumsy `killpg` may send; the supervisor has to outlive it and report.
_IGNORED = tuple(
    getattr(signal, f"SIG{name}")
    for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "TSTP", "TTIN", "TTOU", "PIPE")
)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

Process = collections.namedtuple("Process", "pid ppid session start_ticks state")
"""One row of /proc. A process is known by (pid, start_ticks): pids are used again, start times (clock ticks
since boot) are not."""


# ---- processes ------------------------------------------------------------------------------------------


def look(pid: int) -> Process | None:
    """Read ``/proc/<pid>/stat``; None if there is no such process (zombies do count)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The name in parentheses may hold anything, also spaces and parentheses: count from the last one.
    fields = line[line.rindex(b")") + 2 :].split()
    state, threads = fields[0].decode(), int(fields[17])
    if state == "Z" and threads > 1:
        state = "S"  # only its first thread has ended
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), state)


def alive(pid: int, start_ticks: int) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    seen = look(pid)
    return seen is not None and seen.start_ticks == start_ticks and seen.state not in "ZX"


def processes() -> list[Process]:
    """Every process that can be seen, zombies left out."""
    seen = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in seen if process is not None and process.state not in "ZX"]


def descendants(root: int, among: Sequence[Process] | None = None) -> list[Process]:
    """The children of ``root``, their children, and so on; without ``root`` itself."""
    children: dict[int, list[Process]] = {}
    for process in processes() if among is None else among:
        children.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    ahead = [root]
    while ahead:
        below = children.pop(ahead.pop(), [])
        found += below
        ahead += [process.pid for process in below]
    return found


def send(pid: int, start_ticks: int, signum: int) -> bool:
    """Signal this very process, never one that has got its pid since.

    Returns:
        False if the process is not ours to signal; True otherwise, also if it has gone.
    """
    handle = None
    try:
        if hasattr(os, "pidfd_open"):
            try:
                handle = os.pidfd_open(pid)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return True
        if not alive(pid, start_ticks):
            return True
        if handle is not None:
            signal.pidfd_send_signal(handle, signum)
        else:
            os.kill(pid, signum)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def boot_id() -> str:
    """What tells one boot of the machine from the next."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def oom_counter(groups: str = "/sys/fs/cgroup") -> str:
    """The file in which the kernel counts what it kills of this process's control group for lack of main memory.

    Args:
        groups: Where the control groups of the machine, or of the container, are shown.

    Returns:
        Empty if there is none, as on a machine without control groups.
    """
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (f"{groups}/memory", "memory.oom_control") if controllers else (groups, "memory.events")
        for folder in (f"{base}{group}", base):  # a container may see its own group as the uppermost one
            if os.path.exists(f"{folder}/{name}"):
                return f"{folder}/{name}"
    return ""


def oom_kills(counter: str) -> int | None:
    """How many processes of the group the kernel has killed so far for lack of main memory; None: nobody counts.

    Args:
        counter: What :func:`oom_counter` gave.
    """
    try:
        with open(counter) as file:
            counts = dict(line.split() for line in file)
        return int(counts["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


# ---- the run's folder -----------------------------------------------------------------------------------


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write a file that is either absent or whole, whenever one looks, and after a power loss, too.

    On a full disk it is written where :func:`reserve` has made room for it.
    """
    temporary = f"{path}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    try:
        _write_through(temporary, json.dumps(content))
    except OSError as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        if error.errno not in NO_ROOM or not os.path.exists(f"{path}{_RESERVED}"):
            raise
        temporary = f"{path}{_RESERVED}"
        _write_through(temporary, json.dumps(content).ljust(_RESERVED_BYTES), mode="r+")
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path))


def reserve(path: str) -> None:
    """Make room on the disk for what :func:`write_json` will write there."""
    _write_through(f"{path}{_RESERVED}", " " * _RESERVED_BYTES)


def read_json(path: str) -> dict[str, Any] | None:
    """Read what :func:`write_json` wrote; None if it is not there, or is nothing of the kind."""
    try:
        with open(path) as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def claim(run_dir: str, content: dict[str, Any]) -> bool:
    """Claim the launch; exactly one caller ever gets True.

    The file appears with its content in one step (a link fails if the name exists), so that a loser who reads
    it always learns who won.
    """
    temporary = f"{run_dir}/{CLAIM}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    _write_through(temporary, json.dumps(content))
    try:
        os.link(temporary, f"{run_dir}/{CLAIM}")
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    sync_folder(run_dir)
    return True


def sync_folder(folder: str) -> None:
    """Let the names in a folder survive a power loss, as far as its file system can."""
    handle = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems know no such thing
            raise
    finally:
        os.close(handle)


def _write_through(path: str, text: str, mode: str = "w") -> None:
    # The umask is the run's, not the worker's: what is ours is closed to others all the same.
    with open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


# ---- one run --------------------------------------------------------------------------------------------


def reset_signals() -> None:
    """Undo what was handed on to this process: signals that are ignored (`nohup`, `&`, a parent's habit) or blocked.

    What is ignored, or blocked, stays so in every child and beyond ``exec``. Whatever is to become a run calls this
    first: the run then begins as it would in a fresh shell, however the worker was started. Handlers stay.
    """
    for signum in signal.valid_signals():
        if signal.getsignal(signum) == signal.SIG_IGN and signum not in _IGNORED_BY_PYTHON:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def supervise(job: dict[str, Any], reply: int, *, warm: bool, only_ours: Iterable[int] = ()) -> int:
    """Fork the run's process off and watch over it. The run has the signal handlers that this process has now.

    Args:
        job: ``id``, ``run_dir`` (absolute), ``cwd``, ``cpus``; the caller uses the rest.
        reply: Where one JSON line says that the run has started, or why it has not. Closed afterwards.
        warm: Whether the run is a fork of a warm interpreter; written to ``process.json``.
        only_ours: File descriptors that the supervisor keeps and the run must not have.

    Returns:
        In the run's own process only (the supervisor ends in here): a pipe that :func:`refuse` takes, to be
        closed once the run's program is about to begin.
    """
    try:
        kept = _detach(job["run_dir"])
        own = look(os.getpid())
        mine = {"pid": os.getpid(), "start_ticks": own.start_ticks if own else 0, "boot": boot_id()}
        if not claim(job["run_dir"], mine):
            raise RuntimeError("the launch was revoked, or has been started already")
        go_read, go_write = os.pipe()
        trouble_read, trouble_write = os.pipe()
        pid = os.fork()
    except BaseException as error:
        _answer(reply, {"id": job["id"], "error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    if pid == 0:
        for fd in (go_write, trouble_read, reply, *only_ours):
            os.close(fd)
        _prepare(job, kept, go_read, trouble_write)
        return trouble_write
    try:
        for fd in (go_read, trouble_write):
            os.close(fd)
        _watch_over(job, pid, mine, warm, reply, go_write, trouble_read)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # into output.log, which is all that is left to us
    finally:
        os._exit(0)


def refuse(trouble: int, error: Exception) -> NoReturn:
    """End the run's process because its program cannot begin; the launch fails with this error."""
    os.write(trouble, f"{type(error).__name__}: {error}".encode(errors="replace"))
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _detach(run_dir: str) -> dict[int, Any]:
    """Cut every tie to the worker. Returns the signal handlers that the run gets back."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(f"{run_dir}/{OUTPUT}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, standard in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, standard)
    os.close(nothing)
    os.close(output)
    os.chdir("/")  # the run's folder, or a file system, may be removed under a supervisor
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return {signum: signal.signal(signum, signal.SIG_IGN) for signum in _IGNORED}


def _prepare(job: dict[str, Any], handlers: dict[int, Any], go: int, trouble: int) -> None:
    """Make this fork the run's own process, up to the point where its program begins."""
    try:
        os.setsid()  # a `killpg` by the run reaches the run, not its supervisor
        for signum, handler in handlers.items():
            if handler is not None:
                signal.signal(signum, handler)
        if not os.read(go, 1):  # the supervisor died before it could write process.json: nothing may run
            os._exit(1)
        os.close(go)
        if job["cpus"]:
            try:
                os.sched_setaffinity(0, job["cpus"])
            except OSError as error:
                message = f"prefect-gpu: not bound to cores {job['cpus']}: {error}\n"
                os.write(2, message.encode())
    except (OSError, ValueError) as error:
        refuse(trouble, error)
    try:
        os.chdir(job["cwd"])
    except (OSError, ValueError) as error:
        refuse(trouble, OSError(f"its working directory cannot be entered: {error}"))


def _watch_over(
    job: dict[str, Any], pid: int, mine: dict[str, Any], warm: bool, reply: int, go: int, trouble: int
) -> None:
    run_dir, seen = job["run_dir"], look(pid)
    facts = {
        "pid": pid,
        "start_ticks": seen.start_ticks if seen else 0,
        "supervisor_pid": mine["pid"],
        "supervisor_start_ticks": mine["start_ticks"],
        "boot": mine["boot"],
        "warm": warm,
    }
    counter = oom_counter()
    killed_before = oom_kills(counter)
    try:
        reserve(f"{run_dir}/{EXIT}")
        write_json(f"{run_dir}/{PROCESS}", facts)
    except OSError as error:  # closing `go` unsaid ends the child
        _answer(reply, {"id": job["id"], "error": f"{type(error).__name__}: {error}"})
        return
    os.write(go, b"g")
    os.close(go)
    problem = b""
    while chunk := os.read(trouble, 4096):
        problem += chunk
    os.close(trouble)
    answer: dict[str, Any] = {"id": job["id"], "started": facts}
    if problem:
        answer = {"id": job["id"], "error": problem.decode(errors="replace")[:2000]}

    used = {"max_rss_bytes": 0, "cpu_seconds": 0.0}
    if not problem:
        _answer(reply, answer)
    returncode = None
    while returncode is None:
        ended, status, usage = os.wait4(-1, 0)
        _account(used, usage)
        if ended == pid:
            returncode = os.waitstatus_to_exitcode(status)
    killed = oom_kills(counter)
    since = None if killed is None or killed_before is None else killed - killed_before
    left = _end_leftovers(used)
    end = {"returncode": returncode, "ended_at": time.time(), "left": left, "oom_kills": since}
    write_json(f"{run_dir}/{EXIT}", {**end, **used})
    if problem:  # only now is nothing left of it
        _answer(reply, answer)


def _end_leftovers(used: dict[str, Any]) -> list[int]:
    """End whatever the run left behind. Returns the pids that we may not signal (another user's)."""
    deadline = time.monotonic() + LEFTOVER_GRACE_SECONDS
    asked: set[tuple[int, int]] = set()
    while True:
        try:
            ended, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if ended:
            _account(used, usage)
            continue
        force = time.monotonic() >= deadline
        refused: list[int] = []
        below = descendants(os.getpid())
        for process in below:
            key = (process.pid, process.start_ticks)
            if (force or key not in asked) and not send(*key, signal.SIGKILL if force else signal.SIGTERM):
                refused.append(process.pid)
            asked.add(key)
        if force and below and len(refused) == len(below):
            return refused
        time.sleep(0.01)


def _account(used: dict[str, Any], usage: Any) -> None:
    used["max_rss_bytes"] = max(used["max_rss_bytes"], usage.ru_maxrss * 1024)  # Linux counts in KiB
    used["cpu_seconds"] += usage.ru_utime + usage.ru_stime


def _answer(reply: int, message: dict[str, Any]) -> None:
    try:
        os.write(reply, (json.dumps(message) + "\n").encode())  # below PIPE_BUF, hence in one piece
        os.close(reply)
    except OSError:
        pass  # the worker is gone: the run goes on without it


def main() -> None:
    """Start one run cold: the job is JSON on stdin, the answer one line on stdout."""
    reset_signals()
    job = json.load(sys.stdin)
    begin(job, supervise(job, os.dup(1), warm=False))


def begin(job: dict[str, Any], trouble: int) -> NoReturn:
    """Become the program of a run that is started cold.

    Args:
        job: ``argv`` and ``env``.
        trouble: What :func:`supervise` returned.
    """
    for signum in _IGNORED_BY_PYTHON:  # exec would hand that on
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvpe(job["argv"][0], job["argv"], job["env"])
    except FileNotFoundError as error:
        refuse(trouble, FileNotFoundError(error.errno, error.strerror, job["argv"][0]))
    except (OSError, ValueError) as error:
        refuse(trouble, error)


if __name__ == "__main__":
    main()
