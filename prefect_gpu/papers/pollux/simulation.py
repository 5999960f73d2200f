"""A workload in Pollux' world, from the folder of its tables: what ``prefect-gpu simulate --world pollux`` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from prefect_gpu.papers.pollux.goodput import Goodput
from prefect_gpu.papers.pollux.optimus import Optimus
from prefect_gpu.papers.pollux.speeds import LearnedSpeeds, TrueSpeeds
from prefect_gpu.papers.pollux.tables import read_tables
from prefect_gpu.papers.pollux.tiresias import Tiresias
from prefect_gpu.papers.pollux.world import Policy, PolluxWorld
from prefect_gpu.papers.unsuitable import Unsuitable
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.traces import TraceJob

_POLICIES: dict[tuple[str, str], Callable[[], Policy]] = {
    ("adaptive", "exact"): lambda: Goodput(TrueSpeeds()),
    ("adaptive", "learned"): lambda: Goodput(LearnedSpeeds()),
    ("tiresias", "none"): Tiresias,
    ("optimus", "exact"): Optimus,
}
_MOST_PER_NODE = 4  # more GPUs of a node were not measured


def simulate_pollux(
    jobs: Sequence[TraceJob],
    profile: object,
    knowledge: str,
    tables: Path,
    *,
    nodes: int,
    gpus_per_node: int,
    keep_timeline: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Results:
    """Run a workload under one of this world's policies.

    Args:
        jobs: From :func:`~prefect_gpu.papers.pollux.workloads.read_workload`.
        profile: ``adaptive``, or of Pollux' authors ``tiresias`` or ``optimus``.
        knowledge: What ``adaptive`` knows of speeds: ``exact``, or ``learned`` while jobs train. Of the others,
            Tiresias knows nothing in any case, and Optimus all.
        tables: Folder of the models' tables.

    Raises:
        FileNotFoundError: The tables are not there.
        Unsuitable: An argument does not belong into this world, a table cannot be read, or a job's model has none.
    """
    known = {name: of for name, of in _POLICIES if name != "adaptive"}.get(str(profile), knowledge)
    policy = _POLICIES.get((str(profile), known))
    if policy is None:
        names = ", ".join(dict.fromkeys(name for name, _ in _POLICIES))
        raise Unsuitable(
            f"profile={profile!r} with knowledge={knowledge!r} is not known in world='pollux': choose one of {names}, "
            "and exact or learned."
        )
    if gpus_per_node > _MOST_PER_NODE:
        raise Unsuitable(f"gpus_per_node={gpus_per_node} was not measured in world='pollux': give {_MOST_PER_NODE}.")
    try:
        found = read_tables(tables)
    except ValueError as error:
        raise Unsuitable(str(error)) from error
    lacking = sorted({job.model for job in jobs} - found.keys())
    if lacking:
        raise Unsuitable(f"tables={tables} has none of the model {lacking[0]!r}: it has {', '.join(found)}.")
    world = PolluxWorld(
        jobs,
        found,
        policy(),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        keep_timeline=keep_timeline,
        progress=progress,
    )
    return world.run()
