"""Lets a run compute for a part of the time only: stops and continues its processes, ten times a second.

A process of its own (``python -I -S``, the standard library only), so that a worker that dies never leaves a run
stopped: the end of its input ends it, and it continues the run first. Lines of its input are parts of the time.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

if __package__:
    from prefect_gpu.runtime.drivers import supervisor
else:  # as a script: see throttle.py
    import supervisor  # type: ignore[no-redef,import-not-found,unused-ignore]

PERIOD_S = 0.1
_LOOK_S = 1.0  # how often new processes of the run are looked for
LEAST = 1.0 / 16


def processes_of(
    main: tuple[int, int], overseer: tuple[int, int], everything: list[supervisor.Process] | None = None
) -> list[supervisor.Process]:
    """The living processes of a run: those of its session, and those below its supervisor.

    Args:
        main: Pid and start time of the run's first process, which leads its session.
        overseer: The same of its supervisor.
    """
    everything = supervisor.processes() if everything is None else everything
    leader = supervisor.look(main[0])
    found = {}
    if leader is None or leader.start_ticks == main[1]:
        found = {process.pid: process for process in everything if process.session == main[0]}
    if supervisor.alive(*overseer):
        found.update({process.pid: process for process in supervisor.descendants(overseer[0], everything)})
    return list(found.values())


def signal_all(processes: list[supervisor.Process], signum: int) -> None:
    """Signal these very processes."""
    for process in processes:
        supervisor.send(process.pid, process.start_ticks, signum)


def run(main: tuple[int, int], overseer: tuple[int, int]) -> None:
    """Obey the input until it ends, or the run does."""
    part, known, looked_at = 1.0, [], -_LOOK_S
    stopped: list[supervisor.Process] = []
    try:
        while True:
            now = time.monotonic()
            if part < 1.0 and now - looked_at >= _LOOK_S:
                known, looked_at = processes_of(main, overseer), now
                if not known:
                    return
            news = _line(PERIOD_S * part if part < 1.0 else None)
            if news == "":
                return
            if news is None and part < 1.0:
                stopped = known
                signal_all(stopped, signal.SIGSTOP)
                news = _line(PERIOD_S * (1.0 - part))
                signal_all(stopped, signal.SIGCONT)
                stopped = []
                if news == "":
                    return
            if news is not None:
                part = min(1.0, max(LEAST, float(news)))
    finally:
        signal_all(stopped, signal.SIGCONT)
        signal_all(processes_of(main, overseer), signal.SIGCONT)


def _line(timeout_s: float | None) -> str | None:
    """The newest line of the input; None if there is none in that time, "" at its end."""
    if not select.select([sys.stdin], [], [], timeout_s)[0]:
        return None
    told = os.read(sys.stdin.fileno(), 4096)  # through no buffer, in which select() would not see a second line
    return told.decode().splitlines()[-1] if told else ""


def _end(*_: object) -> None:
    raise SystemExit(0)


def main(arguments: list[str]) -> None:
    """Take pid and start time of the run's first process and of its supervisor."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pid, ticks, overseer_pid, overseer_ticks = map(int, arguments)
    run((pid, ticks), (overseer_pid, overseer_ticks))
