"""What waiting runs cost the server that they wait on, and the worker that they wait for.

    python -m benchmarks.waiting [--json] [--quick] [--submit N] [--waiting N] [--database URL]

Three measurements against one private server with real workers, whose two devices are held all the time:

- how long it takes to submit runs one after another, beside a worker and without it (it is frozen then), alternately;
- how often the worker, and a run itself, write to the server for a training, and for a run that waits;
- with thousands of runs that wait and nothing else happening: the worker's share of a core, the growth of its event
  log, the requests that it sends, and how long after a process has ended the next run's process begins.

``--database`` names an empty PostgreSQL database for the server (``postgresql+asyncpg://...``); the default is SQLite.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from prefect.client.orchestration import PrefectClient, get_client

from benchmarks._claims import Claim, at_most, below, command_line, report
from benchmarks._host.counting import CountingProxy, counting, is_write
from benchmarks._host.served import completed, deploy, recorded, served, settings
from benchmarks._host.waiting import until
from prefect_gpu.demo.lab.sandbox import Process, Sandbox

_FLOWS = Path(__file__).with_name("_waiting_flow.py")
_DEADLINE_S = 900.0  # against hanging for ever
_BULK = 100  # runs that Prefect creates with one request
_WAITED_S = 15.0  # after a submission, for what is shown late


class Bench:
    """The server, its pools, and what the runs note."""

    def __init__(
        self, box: Sandbox, client: PrefectClient, worker_side: CountingProxy, run_side: CountingProxy
    ) -> None:
        self.box, self.client, self.worker_side, self.run_side = box, client, worker_side, run_side
        # Runs would inherit the worker's address: so they are counted apart.
        self.own_door: dict[str, Any] = {"env": {"PREFECT_API_URL": run_side.api_url}}

    def start_worker(self, pool: str) -> Process:
        """A worker with two devices, which reaches the server through the proxy that counts."""
        state = settings(virtual_devices="2", state_dir=str(self.state_dir(pool)), page="false")
        return self.box.start_worker(pool, env={"PREFECT_API_URL": self.worker_side.api_url, **state})

    def state_dir(self, pool: str) -> Path:
        """Of the pool's worker."""
        return self.box.folder / f"state-{pool}"

    async def submit(self, deployment: UUID, count: int) -> list[UUID]:
        """Submit runs one after another."""
        given: dict[str, Any] = {"parameters": {"folder": str(self.box.folder)}, "job_variables": self.own_door}
        return [(await self.client.create_flow_run_from_deployment(deployment, **given)).id for _ in range(count)]

    async def fill(self, deployment: UUID, count: int) -> None:
        """Create runs in bulk. A server on SQLite may refuse some while it is busy."""
        one = {"parameters": {"folder": str(self.box.folder)}, "job_variables": self.own_door}
        path = f"/deployments/{deployment}/create_flow_run/bulk"
        while count > 0:
            answer = await self.client._client.post(path, json=[one] * min(_BULK, count))
            if not answer.is_server_error:
                count -= sum(result["status"] == "CREATED" for result in answer.raise_for_status().json()["results"])

    def begun(self) -> dict[str, dict[str, float]]:
        """By run, when its process began and when its first line was reached."""
        notes = [json.loads(file.read_text()) for file in self.box.folder.glob("began-*") if file.suffix != ".tmp"]
        return {note["run"]: note for note in notes}


async def count_writes(bench: Bench, deployment: UUID, worker: Process, runs: int) -> dict[str, Counter[str]]:
    """By who asks, the requests of trainings from their submission to their end, one after another."""
    bench.worker_side.seen.clear()
    bench.run_side.seen.clear()
    for _ in range(runs):
        run = await bench.client.create_flow_run_from_deployment(deployment, job_variables=bench.own_door)
        await completed(bench.client, worker, [run.id], deadline_s=_DEADLINE_S, every_s=0.5)
        await recorded(bench.state_dir("gpus"), [run.id], worker)
    return {"worker": Counter(bench.worker_side.seen), "run": Counter(bench.run_side.seen)}


async def submission(
    bench: Bench, worker: Process, deployments: Mapping[str, UUID], count: int, rounds: int
) -> tuple[dict[str, float], Counter[str]]:
    """Seconds that the submission of so many runs takes without a worker and beside one; and what the worker asks."""
    took = dict.fromkeys(deployments, 0.0)
    asked: Counter[str] = Counter()
    for number in range(rounds):
        for name in list(deployments) if number % 2 else reversed(list(deployments)):
            worker.popen.send_signal(signal.SIGCONT if name == "gpus" else signal.SIGSTOP)
            await asyncio.sleep(3.0)
            bench.worker_side.seen.clear()
            began = time.monotonic()
            await bench.submit(deployments[name], count // rounds)
            lasted = time.monotonic() - began
            took[name] += lasted
            print(f"{name}: {count // rounds} runs in {lasted:.1f} s", file=sys.stderr)
            if name == "gpus":
                await asyncio.sleep(_WAITED_S)
                asked += bench.worker_side.seen
    worker.popen.send_signal(signal.SIGCONT)
    return took, asked


async def idleness(
    bench: Bench, deployment: UUID, pool: str, waiting: int, watched_s: float, ends: int
) -> dict[str, Any]:
    """What so many waiting runs cost while nothing happens, and seconds from an end to the next start."""
    before = set(bench.begun())
    await bench.submit(deployment, 2)
    await bench.fill(deployment, waiting)
    began = time.monotonic()
    worker = bench.start_worker(pool)
    log = bench.state_dir(pool) / "events" / f"{pool}.jsonl"
    await until(lambda: len(set(bench.begun()) - before) == 2, "two runs to begin", deadline_s=_DEADLINE_S, every_s=0.5)

    def taken_in() -> bool:
        return log.read_bytes().count(b'"event": "JobSubmitted"') >= waiting + 2

    await until(taken_in, "all runs to be taken in", deadline_s=_DEADLINE_S, every_s=2.0)
    taken_in_s = time.monotonic() - began
    await asyncio.sleep(min(60.0, watched_s))
    process, size = psutil.Process(worker.pid), log.stat().st_size
    used, since = sum(process.cpu_times()[:2]), time.monotonic()
    bench.worker_side.seen.clear()
    await asyncio.sleep(watched_s)
    lasted = time.monotonic() - since
    share = (sum(process.cpu_times()[:2]) - used) / lasted
    asked, grown = Counter(bench.worker_side.seen), log.stat().st_size - size
    starts, lines = [], []
    for _ in range(ends):
        known = bench.begun()
        ending = next(run for run in known if run not in before)
        before.add(ending)
        (bench.box.folder / f"go-{ending}").touch()
        await until(lambda known=known: len(bench.begun()) > len(known), "the next run", every_s=0.1)  # type: ignore[misc]
        [row] = await recorded(bench.state_dir(pool), [UUID(ending)], worker)
        [next_run] = [note for run, note in bench.begun().items() if run not in known]
        starts.append(next_run["process"] - row.ended_at)
        lines.append(next_run["line"] - row.ended_at)
        await asyncio.sleep(3.0)
    return {
        "waiting": waiting,
        "taken_in_s": taken_in_s,
        "core_share": share,
        "event_log_bytes_per_s": grown / lasted,
        "requests_per_s": asked.total() / lasted,
        "writes_per_s": sum(n for kind, n in asked.items() if is_write(kind)) / lasted,
        "next_process_s": starts,
        "next_first_line_s": lines,
    }


async def measure(box: Sandbox, proxies: tuple[CountingProxy, ...], chosen: Any) -> tuple[list[Claim], dict[str, Any]]:
    """All three."""
    async with get_client() as client:
        bench = Bench(box, client, *proxies)
        holds = {name: await deploy(_FLOWS, "hold", name) for name in ("alone", "gpus", "full")}
        training = await deploy(_FLOWS, "train", "gpus", name="training")
        worker = bench.start_worker("gpus")
        await asyncio.sleep(5.0)  # its warm interpreter has imported Prefect
        by_whom = await count_writes(bench, training, worker, chosen.trainings)
        await bench.submit(holds["gpus"], 2)
        await until(lambda: len(bench.begun()) == 2, "both devices to be held", every_s=0.2)
        took, asked = await submission(
            bench, worker, {name: holds[name] for name in ("alone", "gpus")}, chosen.submit, chosen.rounds
        )
        worker.kill()  # what holds its devices goes on
        idle = await idleness(bench, holds["full"], "full", chosen.waiting, chosen.watched_s, chosen.ends)
        (box.folder / "go").touch()
    per_run = {
        who: sum(n for kind, n in seen.items() if is_write(kind)) / chosen.trainings for who, seen in by_whom.items()
    }
    per_waiting = sum(n for kind, n in asked.items() if is_write(kind)) / chosen.submit
    claims = [
        at_most("submitting beside a worker / without one", took["gpus"] / took["alone"], 1.3),
        at_most("the worker's writes for a run that waits", per_waiting, 2.0),
        at_most("the worker's writes for a training of 5 s", per_run["worker"], 20.0),
        below("waiting: the worker's share of a core", idle["core_share"], 0.05),
        below("waiting: growth of its event log, bytes/s", idle["event_log_bytes_per_s"], 1000.0),
        at_most("waiting: from an end to the next process, median, s", statistics.median(idle["next_process_s"]), 0.5),
    ]
    details = {
        "submission_s": took,
        "writes_per_training": per_run,
        "requests_of_trainings": {who: dict(seen.most_common()) for who, seen in by_whom.items()},
        "requests_while_submitting": dict(asked.most_common()),
        "idle": idle,
    }
    return claims, details


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="a minute on an idle machine: few runs, and a short look")
    parser.add_argument("--submit", type=int, default=300, help="runs that are submitted (default: 300)")
    parser.add_argument("--waiting", type=int, default=10_000, help="runs that wait (default: 10,000)")
    parser.add_argument("--database", help="an empty PostgreSQL database for the server (default: SQLite)")
    chosen = parser.parse_args()
    chosen.rounds, chosen.trainings, chosen.watched_s, chosen.ends = 4, 3, 300.0, 5
    if chosen.quick:
        chosen.submit, chosen.waiting = min(chosen.submit, 16), min(chosen.waiting, 200)
        chosen.rounds, chosen.trainings, chosen.watched_s, chosen.ends = 2, 1, 5.0, 1
    more = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": chosen.database} if chosen.database else {}
    pools = dict.fromkeys(("alone", "gpus", "full"), "gpu")
    with served(pools, settings=more) as box, counting(box.port, box.port) as proxies:
        claims, details = asyncio.run(measure(box, proxies, chosen))
        box.close()  # while the proxies are there: what runs still says its last word
    return report("waiting", claims, details, as_json=chosen.json)


if __name__ == "__main__":
    sys.exit(main())
