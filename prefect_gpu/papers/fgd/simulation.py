"""A workload in FGD's world, from its tables: what ``prefect-gpu simulate --world fgd`` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from prefect_gpu.papers.fgd.authors import BestFit, Fgd
from prefect_gpu.papers.fgd.ours import Expecting
from prefect_gpu.papers.fgd.tables import (
    NODES,
    Machine,
    Pod,
    Shape,
    arrivals_of,
    read_arrivals,
    read_machines,
    read_pods,
)
from prefect_gpu.papers.fgd.world import FgdWorld, Policy
from prefect_gpu.papers.unsuitable import Unsuitable
from prefect_gpu.simulation.results import Results

POLICIES: dict[tuple[str, str], Callable[[Sequence[Shape]], Policy]] = {
    ("adaptive", "exact"): Expecting,
    ("adaptive", "learned"): lambda _: Expecting(),
    ("fgd", "exact"): Fgd,
    ("bestfit", "none"): lambda _: BestFit(),
}
"""By profile and what it knows of the pods that will come; given all pods of the workload."""


class Workload(NamedTuple):
    """What arrives, and where.

    Attributes:
        machines: In the order in which equal ones are taken.
        pods: All there are, each once: what is expected.
        arriving: In order; resampled where arrivals were drawn.
    """

    machines: list[Machine]
    pods: list[Pod]
    arriving: list[Pod]


def read_workload(trace: Path, tables: Path, seed: int) -> Workload:
    """A workload as a seed has drawn it; where no arrivals stand beside the nodes, each pod comes once, by name.

    Args:
        trace: The pods, ``openb_pod_list_<workload>.csv``.
        tables: Folder of the nodes, and of ``arrivals_<workload>.json.gz``.
        seed: One of those that were drawn.

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: A file cannot be read, or the seed was not drawn.
    """
    pods, machines = read_pods(trace), read_machines(tables / NODES)
    path = arrivals_of(trace, tables)
    if not path.is_file():
        return Workload(machines, pods, pods)
    drawn = read_arrivals(path)
    if seed not in drawn:
        raise ValueError(f"seed={seed} was not drawn in {path}: choose one of {', '.join(map(str, sorted(drawn)))}.")
    found = drawn[seed]
    if sorted(found.node_rank) != [*range(len(machines))] or not all(0 <= pod < len(pods) for pod in found.pods):
        raise ValueError(f"{path} was not drawn of {trace} and {tables / NODES}: name the files that belong together.")
    ranked = sorted(zip(found.node_rank, machines, strict=True))
    return Workload([machine for _, machine in ranked], pods, [pods[number] for number in found.pods])


def policy(profile: object, knowledge: str, expected: Sequence[Shape]) -> Policy:
    """Who decides.

    Args:
        profile: ``adaptive``, or of FGD's authors ``fgd`` or ``bestfit``.
        knowledge: What ``adaptive`` knows of the pods: ``exact``, or ``learned`` from the first that come. Of the
            others, FGD knows all in any case, and BestFit nothing.
        expected: All pods of the workload.

    Raises:
        Unsuitable: There is no such policy.
    """
    known = {name: of for name, of in POLICIES if name != "adaptive"}.get(str(profile), knowledge)
    found = POLICIES.get((str(profile), known))
    if found is None:
        names = ", ".join(dict.fromkeys(name for name, _ in POLICIES))
        raise Unsuitable(
            f"profile={profile!r} with knowledge={knowledge!r} is not known in world='fgd': choose one of {names}, "
            "and exact or learned."
        )
    return found(expected)


def simulate_fgd(
    workload: Workload,
    profile: object,
    knowledge: str = "exact",
    *,
    limit: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Results:
    """Place a workload under one of this world's policies; see :func:`policy`.

    Args:
        limit: How many pods arrive; None: all.

    Raises:
        Unsuitable: The profile is not known.
    """
    decides = policy(profile, knowledge, [pod.shape for pod in workload.pods])
    shapes = [pod.shape for pod in workload.arriving[:limit]]
    return FgdWorld(workload.machines, shapes, decides, progress=progress).run()
