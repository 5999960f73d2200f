"""Does every run end once, whatever happens to the cluster?

Three Docker Engines in one Swarm, all on this machine, and a pool with 50 runs in flight at any time, each a container
that trains for a while with checkpoints in a real S3. Meanwhile containers and workers are killed, nodes lose their
power or their link or stand still, the manager restarts, and S3 is away. Devices are taken out of service, a node is to
be drained, machines get notice, runs are suspended and resumed, and deadlines are promised or refused. In the end every
run must be Completed once, must have said its end once, and must have the result of an undisturbed one; but for those
whose deadline is refused, which must never begin. Prefect keeps its data in PostgreSQL, as it advises for so many runs.

    python -m benchmarks.faults [--json] [--quick] [--times N] [--in-flight N] [--only WORDS]

Faults that are meant to stop runs (cordons, drains, notices, suspensions) choose what holds a run that trains and may
be stopped, and it is counted how many the pool has stopped for them.

Needs root, and Debian's packages that .ci/run installs. The trainings are tiny and mostly sleep: this is
about what becomes of runs, not about speed. The containers use this machine's Python.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from pathlib import Path

from prefect.client.orchestration import get_client
from pydantic import SecretStr

from benchmarks._claims import at_least, at_most, command_line, report
from benchmarks._host.served import served
from benchmarks.faults.faults import FAULTS
from benchmarks.faults.notes import Notes, serve
from benchmarks.faults.soak import Fault, Tally
from benchmarks.faults.swarm import SwarmSoak
from prefect_gpu.blocks import CheckpointStorage
from prefect_gpu.lab.checkout import environment, volumes
from prefect_gpu.lab.sandbox import Sandbox
from tests.cluster import started
from tests.postgres import for_prefect, postgres_server
from tests.radosgw import ACCESS_KEY, BUCKET, SECRET_KEY, s3_server

POOL = "faults"


async def soak(
    sandbox: Sandbox, folder: Path, kinds: list[Fault], times: int, in_flight: int, quick: bool, seed: int
) -> Tally:
    """All these faults, each so many times, in random order."""
    chosen = [fault for fault in kinds for _ in range(times)]
    random.Random(seed).shuffle(chosen)
    devices = -(-in_flight // 2)  # two of three nodes take nearly all
    notes = Notes()
    with (
        started(devices=devices) as lab,
        s3_server(folder / "s3", listen="0.0.0.0") as storage,
        serve(lab.gateway, notes) as notes_url,
    ):
        async with get_client() as client:
            await CheckpointStorage(
                bucket=BUCKET,
                endpoint_url=storage.endpoint_url.replace("127.0.0.1", lab.gateway),
                region="default",
                access_key_id=SecretStr(ACCESS_KEY),
                secret_access_key=SecretStr(SECRET_KEY),
            ).save(POOL)
            running = SwarmSoak(
                sandbox, client, POOL, folder, lab=lab, storage=storage, checkpoints=f"block:checkpoint-storage/{POOL}",
                notes=notes, notes_url=notes_url, variables={"volumes": volumes(), "env": environment()},
                in_flight=in_flight, steps=_steps(kinds, quick), step_s=1.0, seed=seed, pause_s=2.0 if quick else 12.0,
            )  # fmt: skip
            try:
                return await running.run(chosen)
            finally:
                running.stop()


def _steps(kinds: list[Fault], quick: bool) -> int:
    """So many seconds does a run train: it is to be hit by a fault, and its end to be waited for."""
    if not quick:
        return 240
    return 20 if all(fault.quick for fault in kinds) else 60


def _kinds(quick: bool, only: list[str]) -> list[Fault]:
    return [
        fault for fault in FAULTS if (any(words in fault.name for words in only) if only else fault.quick or not quick)
    ]


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="a few runs, and once each fault that takes no time")
    parser.add_argument("--times", type=int, default=10, help="how often each fault happens (default: 10)")
    parser.add_argument("--in-flight", type=int, default=50, help="runs at any time (default: 50)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the faults, and whom they hit")
    parser.add_argument("--only", action="append", default=[], help="only faults whose name has this in it; repeatable")
    options = parser.parse_args()
    kinds = _kinds(options.quick, options.only)
    if not kinds:
        parser.error(f"--only {' '.join(options.only)}: there are {', '.join(fault.name for fault in FAULTS)}")
    times, in_flight = (1, 4) if options.quick else (options.times, options.in_flight)
    with (
        tempfile.TemporaryDirectory(prefix="prefect-gpu-faults-") as folder,
        postgres_server() as database,
        served({POOL: "gpu"}, settings=for_prefect(database), host="0.0.0.0") as sandbox,
    ):
        tally = asyncio.run(soak(sandbox, Path(folder), kinds, times, in_flight, options.quick, options.seed))
    least = min(tally.times[fault.name] for fault in kinds)
    claims = [
        at_most("runs that were lost, ended twice, or came to another result", len(tally.wrong), 0),
        at_least("faults of the kind that happened least", least, times),
        at_most("faults that were to stop runs, and stopped none", sum(tally.missed.values()), 0),
    ]
    details = {
        "runs completed": tally.completed,
        "faults": {
            one.name: {"times": tally.times[one.name], "runs tried again": tally.hit[one.name]}
            | ({"runs stopped": tally.stopped[one.name]} if one.name in tally.missed else {})
            for one in kinds
        },
        "wrong": tally.wrong,
        "load_of_the_machine": os.getloadavg()[0],
    }
    return report("faults", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
