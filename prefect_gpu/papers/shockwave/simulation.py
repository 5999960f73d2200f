"""A trace in Shockwave's world, from the folder of its tables: what ``prefect-gpu simulate --world shockwave`` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from prefect_gpu.papers.shockwave.policies import Fair, Replay, ShortestFirst
from prefect_gpu.papers.shockwave.tables import Tables, Training, read_tables
from prefect_gpu.papers.shockwave.world import Policy, ShockwaveWorld
from prefect_gpu.papers.unsuitable import Unsuitable
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.traces import TraceJob

_POLICIES: dict[str, Callable[[], Policy]] = {"adaptive": Fair, "srtf": ShortestFirst}


def simulate_shockwave(
    jobs: Sequence[TraceJob],
    profile: object,
    tables: Path,
    *,
    nodes: int,
    gpus_per_node: int,
    keep_timeline: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Results:
    """Run a trace under one of this world's policies.

    Args:
        jobs: From :func:`~prefect_gpu.papers.shockwave.tables.read_jobs`.
        profile: ``adaptive``, ``srtf``, or a published schedule to replay (``shockwave``, ``mst``).
        tables: Folder of speeds, patterns and what was published.

    Raises:
        FileNotFoundError: The tables are not there.
        Unsuitable: An argument does not belong into this world, the tables are not those of the trace, or a schedule
            needs more GPUs than there are.
    """
    try:
        found = read_tables(tables)
        policy = _policy(str(profile), found)
        world = ShockwaveWorld(
            [job for job in jobs if isinstance(job, Training)],
            found,
            policy,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            keep_timeline=keep_timeline,
            progress=progress,
        )
    except ValueError as error:
        raise Unsuitable(str(error)) from error
    return world.run()


def _policy(profile: str, tables: Tables) -> Policy:
    if profile in _POLICIES:
        return _POLICIES[profile]()
    if profile in tables.schedules:
        return Replay(tables.schedule(tables.schedules[profile]))
    names = ", ".join((*_POLICIES, *tables.schedules))
    raise ValueError(f"profile={profile!r} is not known in world='shockwave': choose one of {names}.")
