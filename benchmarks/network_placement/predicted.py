"""What the simulator says of the same gangs on the same nodes. It is told only how gangs behave alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks._gangs.cluster import Cluster
from benchmarks._gangs.pool import PLACING_ALONE, Fixed, Gang, Outcome, Program
from prefect_gpu.scheduling.model.jobs import Estimate
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.effects.links import Iteration, SharedLinks
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World

_WARM_UP = 1  # steps that open connections


@dataclass(frozen=True)
class Alone:
    """How gangs behave alone, in seconds.

    Attributes:
        iterations: Of a step, by program and workers.
        launching_s: From its grant to its first step.
        saving_s: From its last step to the end of the gang.
    """

    iterations: dict[tuple[str, int], Iteration] = field(default_factory=dict)
    launching_s: float = 0.0
    saving_s: float = 0.0


async def measure(cluster: Cluster, kinds: Iterable[tuple[Program, int]], steps: int) -> Alone:
    """Run gangs of each kind on one node, in one rack and in two, such that no two share a link.

    A gang of more workers than a node has devices is not measured on one node: a step without network takes as long as
    that of two workers.
    """
    first, second = ([node.id for node in cluster.nodes if node.rack == rack] for rack in ("rack1", "rack2"))
    near = {2: (first[:2], second[:2]), 3: ([first[0], *first[:2]], [second[0], *second[:2]])}
    far = {2: [first[0], second[0]], 3: [first[0], *second[:2]]}
    wanted = sorted(set(kinds), key=lambda kind: (kind[0].name, kind[1]))
    programs = list({program.name: program for program, _ in wanted}.values())
    rounds: list[list[tuple[str, Program, tuple[str, ...]]]] = [
        [("node", program, (node.id,) * 2) for program, node in zip(programs, cluster.nodes, strict=False)]
    ]
    for at in range(0, len(wanted), 2):
        rounds.append(
            [("rack", program, tuple(near[size][rack])) for rack, (program, size) in enumerate(wanted[at : at + 2])]
        )
    rounds += [[("across", program, tuple(far[size]))] for program, size in wanted]
    found: dict[tuple[str, str, int], float] = {}
    launching, saving = [], []
    for number, together in enumerate(rounds):
        places = {f"alone-{number}-{at}": nodes for at, (_, _, nodes) in enumerate(together)}
        gangs = [
            Gang(name, replace(program, steps=steps + _WARM_UP), len(places[name]))
            for name, (_, program, _) in zip(places, together, strict=True)
        ]
        outcomes = await cluster.run(gangs, Profile("fixed", placement=Fixed(places)))
        for (spread, _, _), outcome in zip(together, outcomes, strict=True):
            gang = outcome.gang
            found[spread, gang.program.name, gang.workers] = statistics.median(outcome.step_s[_WARM_UP:])
            launching.append(outcome.training_s - outcome.granted_s)
            saving.append(outcome.ended_s - outcome.training_s - sum(outcome.step_s))
    iterations = {
        (program.name, size): Iteration(
            found["node", program.name, 2], found["rack", program.name, size], found["across", program.name, size]
        )
        for program, size in wanted
    }
    return Alone(iterations, statistics.median(launching), statistics.median(saving))


def told(gangs: Sequence[Gang], alone: Alone) -> list[Gang]:
    """The gangs with the estimates that a pool has of them which has seen each program before, alone on one node.

    What an instance sends is what an all-reduce in a ring sends: 2 (n - 1) / n of the gradient in each step.
    """
    return [replace(gang, estimate=_estimate(gang, alone)) for gang in gangs]


def _estimate(gang: Gang, alone: Alone) -> Estimate:
    step_s = alone.iterations[gang.program.name, gang.workers].node_s
    sent_bytes = 2.0 * (gang.workers - 1) / gang.workers * gang.program.gradient_bytes
    return Estimate(
        gang.program.steps * step_s,
        alone.launching_s,
        alone.saving_s,
        sent_bps=sent_bytes / step_s,
    )


def simulate(gangs: Sequence[Gang], profile: Profile, cluster: Cluster, alone: Alone) -> tuple[float, float]:
    """Mean JCT and makespan in seconds, as :func:`figures` takes them."""
    jobs = [
        JobModel(
            gang.name,
            gang.submit_s,
            gang.program.steps * alone.iterations[gang.program.name, gang.workers].node_s,
            gang.request(cluster.cores_asked),
            launching_s=alone.launching_s,
            saving_s=alone.saving_s,
            estimate=gang.estimate,
            kind=gang.program.name,
        )
        for gang in sorted(gangs, key=lambda one: one.submit_s)
    ]
    results = World(cluster.nodes, jobs, profile, physics=SharedLinks(alone.iterations), abilities=PLACING_ALONE).run()
    assert not results.unfinished, results.unfinished
    ends = [outcome.end_s or 0.0 for outcome in results.outcomes]
    return statistics.mean(outcome.jct_s for outcome in results.outcomes), max(ends) - min(
        one.submit_s for one in gangs
    )


def figures(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Mean time from submission to completion, and time from the first submission to the last end, in seconds."""
    began = min(outcome.submitted_s for outcome in outcomes)
    return statistics.mean(outcome.jct_s for outcome in outcomes), max(one.ended_s for one in outcomes) - began
