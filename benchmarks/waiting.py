"""What waiting runs cost the server that they wait on, and the worker that they wait for.

    python -m benchmarks.waiting [--json] [--quick] [--database NAME] [--submit N] [--waiting N]

For a private server on SQLite, and for one on a private PostgreSQL: a real worker, whose two devices are held all the
time, and

- how often the worker, and a run itself, write to the server for a training, and for a run that waits;
- how long it takes to submit runs one after another, beside the worker and without it (it is frozen then), in pairs;
- with thousands of runs that wait and nothing else happening: the worker's share of a core, the growth of its event
  log, how many runs it names in Prefect, and how long after a process has ended the next run's process begins. These
  runs are copied in the server's database, as Prefect takes a quarter of an hour to create ten thousand.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from prefect.client.orchestration import PrefectClient, get_client

from benchmarks._claims import Claim, at_most, below, command_line, report
from benchmarks._host.counting import CountingProxy, counting, is_write
from benchmarks._host.many_runs import copies
from benchmarks._host.served import completed, deploy, recorded, served, settings
from benchmarks._host.waiting import until
from prefect_gpu.lab.migrated import DATABASE
from prefect_gpu.lab.sandbox import Process, Sandbox
from tests.postgres import for_prefect, missing, postgres_server

_FLOWS = Path(__file__).with_name("_waiting_flow.py")
_DEADLINE_S = 900.0  # against hanging for ever
_POOL = "gpus"
_NAMING = "POST /flow_runs/ID/set_state"


class Bench:
    """The server, its database for SQLAlchemy, its pools, and what the runs note."""

    def __init__(self, box: Sandbox, database: str, client: PrefectClient, proxies: tuple[CountingProxy, ...]) -> None:
        self.box, self.database, self.client = box, database, client
        self.worker_side, run_side = proxies
        self.run_side = run_side
        # Runs would inherit the worker's address: so they are counted apart.
        self.own_door: dict[str, Any] = {"env": {"PREFECT_API_URL": run_side.api_url}}
        self.state_dir = box.folder / "state"

    def start_worker(self, looks_every_s: int) -> Process:
        """A worker with two devices, which reaches the server through the proxy that counts."""
        env = settings(virtual_devices="2", state_dir=str(self.state_dir), page="false")
        env |= {"PREFECT_API_URL": self.worker_side.api_url, "PREFECT_WORKER_QUERY_SECONDS": str(looks_every_s)}
        return self.box.start_worker(_POOL, env=env)

    async def submit(self, deployment: UUID, count: int) -> list[UUID]:
        """Submit runs one after another."""
        given: dict[str, Any] = {"parameters": {"folder": str(self.box.folder)}, "job_variables": self.own_door}
        return [(await self.client.create_flow_run_from_deployment(deployment, **given)).id for _ in range(count)]

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
        await recorded(bench.state_dir, [run.id], worker)
    return {"worker": Counter(bench.worker_side.seen), "run": Counter(bench.run_side.seen)}


async def submission(
    bench: Bench, worker: Process, deployments: Mapping[str, UUID], count: int, pairs: int, after_s: float
) -> tuple[list[dict[str, float]], Counter[str], Counter[str]]:
    """Seconds that the submission of so many runs takes without a worker and beside one, in pairs.

    Args:
        deployments: ``alone``, in a pool that nobody serves, and ``gpus``.
        after_s: After a submission, for what is shown late.

    Returns:
        The seconds of each pair; what the worker asked during submissions, and what after them.
    """
    took: list[dict[str, float]] = []
    meanwhile, late = Counter[str](), Counter[str]()
    for number in range(pairs):
        pair: dict[str, float] = {}
        for name in list(deployments) if number % 2 else reversed(list(deployments)):
            worker.popen.send_signal(signal.SIGCONT if name == _POOL else signal.SIGSTOP)
            await asyncio.sleep(min(3.0, after_s))
            bench.worker_side.seen.clear()
            began = time.monotonic()
            await bench.submit(deployments[name], count // pairs)
            pair[name] = time.monotonic() - began
            if name == _POOL:
                meanwhile += bench.worker_side.seen
                bench.worker_side.seen.clear()
                await asyncio.sleep(after_s)
                late += bench.worker_side.seen
        took.append(pair)
        _say(f"{count // pairs} runs submitted: {_seconds(pair)}")
    worker.popen.send_signal(signal.SIGCONT)
    return took, meanwhile, late


async def idleness(bench: Bench, worker: Process, deployment: UUID, earlier: int, chosen: Any) -> dict[str, Any]:
    """What so many waiting runs cost while nothing happens, and seconds from an end to the next start.

    Args:
        earlier: Runs that the pool was given before. On a busy machine they are not all taken in yet.
    """
    before = set(bench.begun())
    log = bench.state_dir / "events" / f"{_POOL}.jsonl"
    await until(lambda: count_of(log) >= earlier, "earlier runs to be taken in", deadline_s=_DEADLINE_S, every_s=1.0)
    waiting = count_of(log) + chosen.waiting
    began = time.monotonic()
    [like] = await bench.submit(deployment, 1)
    await asyncio.to_thread(copies, bench.database, like, chosen.waiting - 1)
    made_s = time.monotonic() - began
    await until(lambda: count_of(log) >= waiting, "all runs to be taken in", deadline_s=_DEADLINE_S, every_s=1.0)
    taken_in_s = time.monotonic() - began - made_s
    _say(f"{chosen.waiting} runs made in {made_s:.0f} s, taken in {taken_in_s:.0f} s later")
    await asyncio.sleep(chosen.watched_s / 3)
    process, size = psutil.Process(worker.pid), log.stat().st_size
    used, since = sum(process.cpu_times()[:2]), time.monotonic()
    bench.worker_side.seen.clear()
    await asyncio.sleep(chosen.watched_s)
    lasted = time.monotonic() - since
    share = (sum(process.cpu_times()[:2]) - used) / lasted
    asked, grown = Counter(bench.worker_side.seen), log.stat().st_size - size
    starts, lines = [], []
    for _ in range(chosen.ends):
        known = bench.begun()
        ending = next(iter(before))
        before.remove(ending)
        (bench.box.folder / f"go-{ending}").touch()
        await until(lambda known=known: len(bench.begun()) > len(known), "the next run", every_s=0.1)  # type: ignore[misc]
        [row] = await recorded(bench.state_dir, [UUID(ending)], worker)
        [next_run] = [note for run, note in bench.begun().items() if run not in known]
        before.add(str(next_run["run"]))
        _say("a run has ended, and the next has begun")
        starts.append(next_run["process"] - row.ended_at)
        lines.append(next_run["line"] - row.ended_at)
        await asyncio.sleep(min(3.0, chosen.after_s))
    return {
        "waiting": waiting,
        "taken_in_s": taken_in_s,
        "core_share": share,
        "event_log_bytes_per_s": grown / lasted,
        "named_per_minute": asked[_NAMING] / lasted * 60.0,
        "requests_per_s": asked.total() / lasted,
        "writes_per_s": _writes(asked) / lasted,
        "requests": dict(asked.most_common()),
        "next_process_s": starts,
        "next_first_line_s": lines,
    }


def count_of(log: Path) -> int:
    """How many waiting runs the scheduler was told of, by its event log."""
    return log.read_bytes().count(b'"event": "JobSubmitted"')


async def measure(
    box: Sandbox, database: str, proxies: tuple[CountingProxy, ...], chosen: Any
) -> tuple[list[Claim], dict[str, Any]]:
    """All three, on one server."""
    async with get_client() as client:
        bench = Bench(box, database, client, proxies)
        holds = {name: await deploy(_FLOWS, "hold", name) for name in ("alone", _POOL)}
        training = await deploy(_FLOWS, "train", _POOL, name="training")
        _say("a worker")
        worker = bench.start_worker(chosen.looks_every_s)
        _say("a training")
        by_whom = await count_writes(bench, training, worker, chosen.trainings)
        _say("two runs that hold the devices")
        await bench.submit(holds[_POOL], 2)
        await until(lambda: len(bench.begun()) == 2, "both devices to be held", every_s=0.2)
        await asyncio.sleep(2.0)  # until they are shown
        took, meanwhile, late = await submission(bench, worker, holds, chosen.submit, chosen.pairs, chosen.after_s)
        earlier = chosen.trainings + 2 + chosen.submit // chosen.pairs * chosen.pairs
        idle = await idleness(bench, worker, holds[_POOL], earlier, chosen)
        worker.kill()
        (box.folder / "go").touch()
    ratio = statistics.median(pair[_POOL] / pair["alone"] for pair in took)
    per_run = {who: _writes(seen) / chosen.trainings for who, seen in by_whom.items()}
    claims = [
        at_most("submitting beside a worker / without one, median of pairs", ratio, 1.3),
        at_most("the worker's writes for a training of 5 s", per_run["worker"], 20.0),
        below("waiting: growth of its event log, bytes/s", idle["event_log_bytes_per_s"], 1000.0),
        at_most("waiting: from an end to the next process, median, s", statistics.median(idle["next_process_s"]), 0.5),
    ]
    if not chosen.quick:  # runs that have just been submitted are still being named then
        written = (_writes(meanwhile) + _writes(late)) / chosen.submit
        claims += [
            at_most("the worker's writes for a run that waits", written, 2.0),
            below("waiting: the worker's share of a core", idle["core_share"], 0.05),
        ]
    details = {
        "submission_s": took,
        "writes_per_training": per_run,
        "requests_of_trainings": {who: dict(seen.most_common()) for who, seen in by_whom.items()},
        "requests_during_submission": dict(meanwhile.most_common()),
        "requests_after_submission": dict(late.most_common()),
        "idle": idle,
    }
    return claims, details


@contextlib.contextmanager
def server_on(name: str) -> Iterator[tuple[Sandbox, str]]:
    """A server on such a database with its pools, and the database's URL for SQLAlchemy."""
    pools = {"alone": "gpu", _POOL: "gpu"}
    with contextlib.ExitStack() as stack:
        if name == "sqlite":
            box = stack.enter_context(served(pools))
            yield box, f"sqlite:///{box.home / DATABASE}?timeout=60"
        else:
            postgres = stack.enter_context(postgres_server(durable=True))
            box = stack.enter_context(served(pools, settings=for_prefect(postgres)))
            yield box, postgres.url("prefect").replace("postgresql:", "postgresql+psycopg:")


def _say(words: str) -> None:
    """What goes on."""
    print(words, file=sys.stderr, flush=True)


def _writes(seen: Mapping[str, int]) -> int:
    return sum(count for kind, count in seen.items() if is_write(kind))


def _seconds(pair: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in pair.items())


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="a minute: SQLite, few runs, a short look, four of the six claims")
    parser.add_argument("--submit", type=int, default=300, help="runs that are submitted (default: 300)")
    parser.add_argument("--waiting", type=int, default=10_000, help="runs that wait (default: 10,000)")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), help="only with this one (default: both)")
    chosen = parser.parse_args()
    chosen.pairs, chosen.trainings, chosen.watched_s, chosen.ends, chosen.after_s = 5, 3, 180.0, 5, 15.0
    chosen.looks_every_s = 10  # Prefect's default
    databases = [chosen.database] if chosen.database else ["sqlite", "postgresql"]
    if chosen.quick:
        chosen.submit, chosen.waiting = min(chosen.submit, 24), min(chosen.waiting, 200)
        chosen.pairs, chosen.trainings, chosen.watched_s, chosen.ends, chosen.after_s = 3, 2, 5.0, 1, 0.5
        chosen.looks_every_s, databases = 5, databases[:1]
    lacking = missing() if "postgresql" in databases else []
    if lacking:
        parser.error(f"--database postgresql needs {' and '.join(lacking)}; --database sqlite does not.")
    claims: list[Claim] = []
    details: dict[str, Any] = {}
    for name in databases:
        _say(f"a server on {name}")
        with server_on(name) as (box, url), counting(box.port, box.port) as proxies:
            found, details[name] = asyncio.run(measure(box, url, proxies, chosen))
            box.close()  # while the proxies are there: what runs still says its last word
        claims += [Claim(f"{name}: {claim.name}", claim.value, claim.asked, claim.holds) for claim in found]
    return report("waiting", claims, details, as_json=chosen.json)


if __name__ == "__main__":
    sys.exit(main())
