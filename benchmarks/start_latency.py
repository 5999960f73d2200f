"""How long does a run take from being scheduled to the first line of the user's function?

Our pool against Prefect's process worker, with that worker's defaults and with a poll every 0.1 s; alternately, in
the same run, against the same server; one run at a time and six at once.

    python -m benchmarks.start_latency [--json] [--quick] [--rounds N]
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import sys
import time
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client

from benchmarks._claims import at_least, command_line, report
from benchmarks._host.served import completed, deploy, served, settings
from benchmarks._host.waiting import until
from prefect_gpu.lab.sandbox import Process, Sandbox

# name, pool type, seconds between polls (None: the default, 10 s)
CONTENDERS = (("ours", "gpu", None), ("process", "process", None), ("process-fast", "process", "0.1"))
FAST = "process-fast"
AT_ONCE = 6
_FLOWS = Path(__file__).with_name("_flows.py")
_DEADLINE_S = 120.0  # against hanging for ever


async def measure(client: PrefectClient, worker: Process, deployment: UUID, folder: Path, count: int) -> list[float]:
    """Start runs at once; seconds from the moment each was scheduled to its first line."""
    runs = await asyncio.gather(
        *(client.create_flow_run_from_deployment(deployment, parameters={"folder": str(folder)}) for _ in range(count))
    )
    latencies = []
    for run in runs:
        mark = folder / str(run.id)
        await until(mark.exists, f"the first line of {run.name}", every_s=0.01)
        assert run.state is not None
        latencies.append(float(mark.read_text()) - run.state.timestamp.timestamp())
    # The processes must be gone before the next contender is measured: they still use the cores.
    await completed(client, worker, [run.id for run in runs], deadline_s=_DEADLINE_S, every_s=0.05)
    await asyncio.sleep(2.5)
    return latencies


async def compare(
    sandbox: Sandbox, workers: dict[str, Process], rounds: int, rounds_at_once: int, seed: int
) -> dict[str, dict[str, list[float]]]:
    """All measurements: {"one" | "six": {contender: [seconds]}}.

    The worker that polls ten times a second sleeps while the others are measured: its polling loads the server.
    """
    chance = random.Random(seed)
    results: dict[str, dict[str, list[float]]] = {"one": {}, "six": {}}
    async with get_client() as client:
        deployments = {name: await deploy(_FLOWS, "first_line", name) for name in workers}
        for number in range(rounds + rounds_at_once):
            kind, count = ("one", 1) if number < rounds else ("six", AT_ONCE)
            for name in chance.sample(list(deployments), k=len(deployments)):
                workers[FAST].popen.send_signal(signal.SIGCONT if name == FAST else signal.SIGSTOP)
                # A poll's phase is chance: the pause is as long as the time between two polls may be.
                await asyncio.sleep(chance.uniform(1.0, 11.0 if name == "process" else 2.0))
                latencies = await measure(client, workers[name], deployments[name], sandbox.folder, count)
                results[kind].setdefault(name, []).extend(latencies)
                print(f"{kind:>4} {name:13} {', '.join(f'{s:.2f}' for s in latencies)} s", file=sys.stderr)
    return results


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="under a minute: without the worker's defaults, whose waiting time is chance")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of one run at a time (default: 9)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rounds, rounds_at_once = (2, 0) if options.quick else (options.rounds, max(1, options.rounds // 3))
    contenders = [one for one in CONTENDERS if not (options.quick and one[0] == "process")]
    with served({name: kind for name, kind, _ in contenders}) as sandbox:
        workers = {}
        for name, _, poll in contenders:
            env = {"PREFECT_WORKER_QUERY_SECONDS": poll} if poll else {}
            workers[name] = sandbox.start_worker(name, env=env | settings(virtual_devices=str(AT_ONCE)))
        time.sleep(3 if options.quick else 8)  # the workers are up, and the warm interpreter has imported Prefect
        try:
            results = asyncio.run(compare(sandbox, workers, rounds, rounds_at_once, options.seed))
        finally:
            workers[FAST].popen.send_signal(signal.SIGCONT)  # a sleeping process cannot be asked to end
    medians = {
        kind: {name: round(statistics.median(values), 3) for name, values in by_name.items()}
        for kind, by_name in results.items()
        if by_name
    }
    one = medians["one"]
    claims = [at_least("one run: process worker's fastest poll / ours", one[FAST] / one["ours"], 5)]
    if "process" in one:
        claims.insert(0, at_least("one run: process worker's defaults / ours", one["process"] / one["ours"], 25))
    if "six" in medians:
        six = medians["six"]
        claims += [
            at_least("six at once: process worker's defaults / ours", six["process"] / six["ours"], 5),
            at_least("six at once: process worker's fastest poll / ours", six["process-fast"] / six["ours"], 3),
        ]
    details = {
        "median_s": medians,
        "all_s": {k: {n: [round(s, 3) for s in v] for n, v in d.items()} for k, d in results.items()},
    }
    return report("start_latency", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
