"""How much gangs slow each other down: measured by the controller, as in production, and put together for each pair."""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks._gangs.cluster import Cluster
from benchmarks._gangs.pool import Fixed, Gang, GangPool, Program
from benchmarks._host.waiting import WaitedInVain
from benchmarks.contention_live.workload import WORKERS
from prefect_gpu.estimation.interference.network import remembered
from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.scheduling.profiles import Profile

Row = dict[str, Any]  # the fields of ``storage.row.ContentionRow``
Pairs = tuple[tuple[Key, Key, float], ...]

_ENDLESS = 100_000  # steps
_TRAINS_S = 11.5  # the controller wants 10 s, and counts from a gang's first report in a company
_PATIENCE_S = 45.0


async def measured(cluster: Cluster, chain: Sequence[Program], *, both_ways: bool = True) -> list[Row]:
    """Let each program of a chain train alone and beside the next one, which it shares a node with.

    The first trains alone, then beside the second until that is measured; then it ends, and the second is alone; and so
    on. A pair that comes to no measurement in time is left out, and it is said.

    Args:
        chain: No program is between two of the same name.
        both_ways: Whether the last one is measured beside the one before it, too: it must train alone for that.

    Raises:
        RunFailed: A gang failed.
        WaitedInVain: A gang did not begin to train in time.
    """
    near, middle, far = (node.id for node in cluster.nodes[:3])
    places = ((near, near, near, middle), (middle, middle, far, far))
    gangs = [
        Gang(f"pair-{at}", replace(program, steps=_ENDLESS), WORKERS, measured=True) for at, program in enumerate(chain)
    ]
    profile = Profile("fixed", placement=Fixed({gang.name: places[at % 2] for at, gang in enumerate(gangs)}))
    async with cluster.pool(profile) as pool:
        before: Gang | None = None
        for gang in gangs:
            pool.submit_gangs(gang)
            await _trains(pool, gang)
            if before is not None:
                await _is_measured(pool, before, gang)
                await pool.end(before.name)
                if both_ways or gang is not gangs[-1]:
                    await asyncio.sleep(_TRAINS_S)
                    await _is_measured(pool, gang, before)
            before = gang
        return [asdict(row) for row in pool.contention]


async def _trains(pool: GangPool, gang: Gang) -> None:
    await pool.until(lambda: pool.trains(gang.name), f"{gang.name} to train", _PATIENCE_S)
    await asyncio.sleep(_TRAINS_S)


async def _is_measured(pool: GangPool, own: Gang, other: Gang) -> None:
    names = own.name, other.program.name

    def is_there() -> bool:
        return any((row.run_id, row.beside) == names for row in pool.contention)

    try:
        await pool.until(is_there, "it to be measured", _PATIENCE_S)
    except WaitedInVain:
        logging.warning("%s was not measured beside %s", own.program.name, other.program.name)


def learned(rows: Iterable[Row]) -> Pairs:
    """What a worker that starts on this history tells the scheduler."""
    return remembered((own, other, row["slowdown"]) for row in rows for own, other in [_keys(row)])


def by_class(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """For each pair of programs, however they were placed: the median slowdown, the extremes, and how many runs."""
    newest: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:  # what a run says of a pair later rests on more steps
        newest[row["program"], row["beside"]][row["run_id"]] = row["slowdown"]
    return {
        f"{program} beside {other}": {
            "slowdown": round(statistics.median(found.values()), 2),
            "least": round(min(found.values()), 2),
            "most": round(max(found.values()), 2),
            "runs": len(found),
        }
        for (program, other), found in sorted(newest.items())
    }


def _keys(row: Row) -> tuple[Key, Key]:
    own = Key(row["program"], row["gpus"], row["nodes"])
    return own, Key(row["beside"], row["beside_gpus"], row["beside_nodes"])
