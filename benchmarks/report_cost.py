"""What reporting costs a training: ``python -m benchmarks.report_cost --json``.

A training process, with a live channel server in a process of its own, measures itself:

* the cost of one ``report()`` while nothing is to be sent (what a fast loop pays nearly always), and
* by how much a loop of 1 ms steps of work is slower with ``report()`` than without, channel thread and all.

Short rounds with and without alternate, in turns, and the ratio is taken within a pair, so that a machine that is busy
with other things (as one that trains is) slows both sides of a pair alike. Medians are compared.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks._claims import Claim, below, command_line, report
from prefect_gpu.training import TrainingRun, training_run
from prefect_gpu.training.protocol import ENV_CHANNEL, ENV_RUN_ID, ENV_TOKEN

MICROSECONDS = 10.0
SLOWDOWN_PERCENT = 1.0


def serve(pipe: Connection) -> None:
    """A controller that takes every event and does nothing with it."""
    from prefect_gpu.runtime.channel import ChannelServer, new_token

    async def main() -> None:
        events = 0

        def on_event(run_id: str, kind: str, at: float, data: dict[str, Any]) -> None:
            nonlocal events
            events += 1

        server, token = ChannelServer(on_event), new_token()
        server.admit("benchmark", token)
        await server.start()
        pipe.send((server.url, token))
        await asyncio.to_thread(pipe.recv)
        await server.close()
        pipe.send(events)

    asyncio.run(main())


def report_seconds(run: TrainingRun, rounds: int) -> float:
    """Median seconds of one ``report()``; each round is timed alone, so that a round with a send is an outlier."""
    clock, costs = time.perf_counter_ns, []
    for step in range(rounds):
        begin = clock()
        run.report(loss=0.5, step=step, accuracy=0.9)
        costs.append(clock() - begin)
    return statistics.median(costs) / 1e9


def work(iterations: int) -> int:
    """Busy work; its time depends on nothing but the machine."""
    total = 0
    for number in range(iterations):
        total += number * number
    return total


def calibrate(seconds: float) -> int:
    """How much work takes so long here."""
    best = min(_timed(lambda: work(20_000)) for _ in range(20))
    return max(1, int(20_000 * seconds / best))


def _timed(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def slowdown(run: TrainingRun, pairs: int, steps: int) -> tuple[float, float, float]:
    """How much slower a loop is with ``report()``.

    Returns:
        The median over pairs of (wall time with / without) - 1; the share of a core that the channel's thread takes
        meanwhile; the median milliseconds of a step without report. Pairs are short, so that both halves of one see
        the same machine; the thread works in both halves, which is why its share has to be added.
    """
    iterations = calibrate(0.001)

    def without() -> None:
        for _ in range(steps):
            work(iterations)

    def reporting() -> None:
        for step in range(steps):
            work(iterations)
            run.report(loss=0.5, step=step, accuracy=0.9)

    ratios, plain = [], []
    wall, process, thread = time.perf_counter(), time.process_time(), time.thread_time()
    for pair in range(pairs):
        if pair % 2:
            base, loaded = _timed(without), _timed(reporting)
        else:
            loaded, base = _timed(reporting), _timed(without)
        ratios.append(loaded / base)
        plain.append(base / steps * 1000)
    thread = time.process_time() - process - (time.thread_time() - thread)
    wall = time.perf_counter() - wall
    return statistics.median(ratios) - 1, thread / wall, statistics.median(plain)


def measure(quick: bool) -> tuple[list[Claim], dict[str, Any]]:
    """Run both measurements inside a pool of one: claims and details."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    os.environ[ENV_CHANNEL], os.environ[ENV_TOKEN] = pipe.recv()
    os.environ[ENV_RUN_ID] = "benchmark"
    with training_run() as run:
        run.ready()
        while not run._client.connected:
            time.sleep(0.001)
        cost = report_seconds(run, 20_000 if quick else 200_000)
        paired, thread, step_ms = slowdown(run, pairs=400 if quick else 1000, steps=50)
    with run.saving():
        pass
    pipe.send("end")
    events = pipe.recv()
    server.join()
    percent = (paired + thread) * 100
    claims = [
        below("median cost of report() with a live channel, nothing to send (µs)", round(cost * 1e6, 3), MICROSECONDS),
        below("slowdown of a loop of 1 ms steps, channel thread included (%)", round(percent, 3), SLOWDOWN_PERCENT),
    ]
    details = {
        "load_average": os.getloadavg()[0],  # above the number of cores, the wall times say little
        "cores": os.cpu_count(),
        "paired_percent": round(paired * 100, 3),
        "channel_thread_percent": round(thread * 100, 3),
        "step_ms_without_report": round(step_ms, 3),
        "events_received": events,
    }
    return claims, details


def main() -> int:
    """Measure, print, and return 1 if a claim does not hold."""
    options = command_line(__doc__, quick="less than a minute").parse_args()
    claims, details = measure(options.quick)
    return report("report_cost", claims, {"details": details}, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
