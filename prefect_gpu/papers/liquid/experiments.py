"""Liquid's experiments (Gu et al., TPDS 2022, §7.3 and §7.4): system optimisations, immediate mode, batch mode."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from prefect_gpu.papers.comparison import Comparison
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.simulation.effects.network import Network
from prefect_gpu.simulation.effects.sharing import Interference
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.physics import Slowdowns
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.world import ALL, World

GIB = 2**30
ADAPTIVE = "adaptive"
WITHOUT_GATES = replace(ALL, gates=False)


@dataclass(frozen=True)
class Program:
    """One of the paper's five programs, on one kind of card; seconds."""

    name: str
    service_s: float
    launching_s: float
    saving_s: float
    network_share: float = 0.0
    utilisation: float = 0.95
    memory_bytes: int = 10 * GIB


CNN_T4 = Program("CNN-MNIST on T4", 12.0, 19.0, 3.5, utilisation=0.40, memory_bytes=2 * GIB)
NEUMF_T4 = Program("NeuMF on T4", 40.0, 21.0, 3.0, utilisation=0.45, memory_bytes=4 * GIB)
CNN_K80 = Program("CNN-MNIST on K80", 30.0, 21.0, 4.0, utilisation=0.40, memory_bytes=2 * GIB)
NEUMF_K80 = Program("NeuMF on K80", 80.0, 23.0, 3.5, utilisation=0.45, memory_bytes=4 * GIB)
# Of an iteration alone on one node, a third, 15 % and 8 % are communication.
RESNET = Program("ResNet-50", 600.0, 20.0, 5.0, 0.15)
INCEPTION = Program("Inception V3", 700.0, 20.0, 5.0, 0.08)
VGG = Program("VGG-16", 900.0, 20.0, 5.0, 1 / 3)

GANG = Request(gpus=1, workers=2, servers=1, cpus=8)
OTHERS = {  # profile: (how the paper calls it, faster by, makespan down by, mean JCT down by)
    "random": (("random", 0.14, 0.24, 0.24),),
    "even": (("even-distributed", 0.32, 0.23, 0.25),),
    "kubernetes-default": (("Kubernetes", 0.19, 0.23, 0.22), ("Kubeflow", 0.16, 0.18, 0.22)),
    "hived": (("HiveD", 0.20, 0.22, 0.18),),
}
_NETWORK = (
    "a node's link is 4 times as slow as its memory; communication is 33, 15 and 8 % of an iteration of VGG-16, "
    "ResNet-50 and Inception V3 on one node (so that VGG-16 differs by 2 between placements, as printed); service of "
    "900, 600 and 700 s; every job is 1 PS + 2 workers of 1 GPU; Kubeflow places as Kubernetes does by default; "
    "HiveD's cells hold GPUs, so Kubernetes places its parameter servers; of the network, only the factor of 2 and the "
    "order of the programs are in print: with a link only 2 times as slow (then 1.33) the gains are about half as large"
)


def _hived(other: str) -> str:
    # Measured with the server inside the cell: 0 % in immediate mode, 2 % and 1 % in batch mode.
    reading = "; this reading of HiveD decides the row: with the server inside the cell it is within 2 % of Liquid"
    return reading if other == "hived" else ""


def compare(quick: bool = False) -> list[Comparison]:
    """Every figure of the paper's evaluation that is in its text, beside what comes out here.

    Args:
        quick: A small instance, in a few seconds: fewer seeds, and the batch on 5 nodes instead of 20.
    """
    seeds = range(2 if quick else 10)
    return [*pre_scheduling(seeds), *sharing(), *event_driven(seeds), *immediate(seeds), *batch(quick)]


def pre_scheduling(seeds: Sequence[int]) -> list[Comparison]:
    """Two jobs after one another on one GPU: how long it does not train between them (§7.3.1)."""
    rows = []
    for program, paper in ((CNN_K80, 0.50), (NEUMF_K80, 0.77), (CNN_T4, 0.18), (NEUMF_T4, 0.30)):

        def idle(profile: str, gates: bool, program: Program = program) -> float:
            return fmean(_idle_s(_sequence(program, 2, seed), profile, gates=gates) for seed in seeds)

        rows.append(
            _row(
                f"pre-scheduling, 2 × {program.name}",
                "GPU idle between two jobs, s",
                "without pre-scheduling",
                paper,
                (idle("liquid-immediate", False), idle("liquid-immediate", True), idle(ADAPTIVE, True)),
                "launching and saving times such that the idle time on T4 is near the 25 and 28 s in print; "
                "estimates of training and launching times err by 10 % "
                "(standard deviation); the preparation of one job does not slow the other down",
                printed=(28.0, 23.0) if program is CNN_T4 else (None, None),
            )
        )
    return rows


def sharing() -> list[Comparison]:
    """Jobs that wait for one GPU: until when all have ended (§7.3.2)."""
    rows = []
    for card, cnn, neumf, papers in (
        ("K80", CNN_K80, NEUMF_K80, (0.38, 0.33, 0.47)),
        ("T4", CNN_T4, NEUMF_T4, (0.40, 0.41, 0.41)),
    ):
        mixes = (("CNN-MNIST × 8", [cnn] * 8), ("NeuMF × 4", [neumf] * 4), ("mixed × 4", [cnn, neumf, neumf, cnn]))
        for (name, programs), paper in zip(mixes, papers, strict=True):

            def total(profile: str, shares: bool, programs: list[Program] = programs) -> float:
                jobs = [_small(program, f"job-{at}", random.Random(at), shares) for at, program in enumerate(programs)]
                return _run(_card(), jobs, profile, gates=False).makespan_s

            rows.append(
                _row(
                    f"sharing, {name} on {card}",
                    "total time, s",
                    "exclusive mode",
                    paper,
                    (total("liquid-immediate", False), total("liquid-immediate", True), total(ADAPTIVE, True)),
                    "mean utilisation of 40 % (CNN-MNIST) and 45 % (NeuMF), both below 50 % as printed; where "
                    "the kernels of two runs meet, each loses 30 % of one; no pre-scheduling on either side",
                )
            )
    return rows


def event_driven(seeds: Sequence[int]) -> list[Comparison]:
    """Jobs after one another on one GPU: idle time with heartbeats of 5 s, and with events (§7.3.3)."""
    rows = []
    for program, paper in ((CNN_K80, 0.15), (NEUMF_K80, 0.10), (CNN_T4, 0.16), (NEUMF_T4, 0.10)):

        def idle(profile: str, heartbeat_s: float, program: Program = program) -> float:
            def one(seed: int) -> float:
                return _idle_s(_sequence(program, 6, seed, 0.3), profile, gates=False, heartbeat_s=heartbeat_s) / 5

            return fmean(one(seed) for seed in seeds)

        rows.append(
            _row(
                f"events, {program.name}",
                "GPU idle between two jobs, s",
                "heartbeats of 5 s",
                paper,
                (idle("liquid-immediate", 5.0), idle("liquid-immediate", 0.0), idle(ADAPTIVE, 0.0)),
                "sequences of 6 jobs of ± 30 % service, so that they end anywhere between two heartbeats; only "
                "the node's report waits for the heartbeat, not the launch; no pre-scheduling on either side",
                printed=(25.0 if program is CNN_T4 else None, None),
            )
        )
    return rows


def immediate(seeds: Sequence[int]) -> list[Comparison]:
    """Jobs that come one by one, with long intervals, on 5 nodes with 2 T4 each (§7.4): mean execution time."""

    def execution(profile: str) -> float:
        def one(seed: int) -> float:
            programs = _mix(1, seed)
            jobs = [_gang(p, f"{seed}-{at}", at * 5000.0) for at, p in enumerate(programs)]
            outcomes = _run(_t4_nodes(5), jobs, profile).finished
            return fmean((o.end_s or 0.0) - (o.first_start_s or 0.0) for o in outcomes)

        return fmean(one(seed) for seed in seeds)

    ours, adaptive = execution("liquid-immediate"), execution(ADAPTIVE)
    return [
        _row(
            "immediate mode, 5 nodes × 2 T4",
            "mean execution time, s",
            called,
            faster,
            (baseline, ours, adaptive),
            _NETWORK + "; the cluster is empty when a job comes" + _hived(other),
        )
        for other, names in OTHERS.items()
        for baseline in (execution(other),)
        for called, faster, _, _ in names
    ]


def batch(quick: bool = False) -> list[Comparison]:
    """Jobs that come quickly, on nodes with 2 T4 each (§7.4, Fig. 19d): makespan and mean completion time."""
    scale = 1 if quick else 4
    seeds = range(2 if quick else 5)

    def both(profile: str) -> tuple[float, float]:
        runs = [_run(_t4_nodes(5 * scale), _burst(scale, seed), profile) for seed in seeds]
        return fmean(run.makespan_s for run in runs), fmean(run.summary()["mean_jct_s"] for run in runs)

    ours, adaptive = both("liquid-batch"), both(ADAPTIVE)
    assumed = f"{_NETWORK}; all are submitted within 5 s, in random order; mean of {len(seeds)} orders"
    return [
        _row(f"batch mode, {5 * scale} nodes × 2 T4", metric, called, paper, figures, assumed + _hived(other))
        for other, names in OTHERS.items()
        for baseline in (both(other),)
        for called, _, *papers in names
        for metric, paper, figures in zip(
            ("makespan, s", "mean completion time, s"), papers, zip(baseline, ours, adaptive, strict=True), strict=True
        )
    ]


def _row(
    setting: str,
    metric: str,
    against: str,
    improvement: float,
    figures: tuple[float, float, float],
    assumed: str,
    printed: tuple[float | None, float | None] = (None, None),
) -> Comparison:
    """A row whose figures are those of (baseline, Liquid, ``adaptive``); printed are mostly the improvements alone."""
    return Comparison("liquid", setting, metric, against, *printed, improvement, *figures, assumed=assumed)


# -- the set-up ------------------------------------------------------------------------------------------------------


def _t4_nodes(count: int) -> list[Node]:
    """Nodes as in Alibaba's cluster: 2 T4, 48 cores, one rack."""
    return [
        Node(f"n{at:02}", tuple(Device(f"n{at:02}-{gpu}", "T4", 15 * GIB) for gpu in range(2)), tuple(range(48)))
        for at in range(count)
    ]


def _card() -> list[Node]:
    return [Node("n", (Device("n-0", "card", 11 * GIB),), tuple(range(24)))]


def _mix(scale: int, seed: int) -> list[Program]:
    """4 ResNet-50, 2 Inception V3 and 2 VGG-16 for each 5 nodes, in random order."""
    programs = ([RESNET] * 4 + [INCEPTION] * 2 + [VGG] * 2) * scale
    random.Random(seed).shuffle(programs)
    return programs


def _burst(scale: int, seed: int) -> list[JobModel]:
    programs, rng = _mix(scale, seed), random.Random(seed + 1000)
    moments = sorted(rng.uniform(0.0, 5.0) for _ in programs)
    return [_gang(p, f"{seed}-{at:02}", moment) for at, (p, moment) in enumerate(zip(programs, moments, strict=True))]


def _gang(program: Program, name: str, submit_s: float) -> JobModel:
    return JobModel(
        name,
        submit_s,
        program.service_s,
        GANG,
        launching_s=program.launching_s,
        saving_s=program.saving_s,
        network_share=program.network_share,
        kind=program.name,
        estimate=Estimate(program.service_s, program.launching_s, program.saving_s),
    )


def _sequence(program: Program, count: int, seed: int, spread: float = 0.1) -> list[JobModel]:
    rng = random.Random(seed)
    return [_small(program, f"job-{at}", rng, False, spread) for at in range(count)]


def _small(program: Program, name: str, rng: random.Random, shares: bool, spread: float = 0.1) -> JobModel:
    """A job whose service varies by some part, and of which the estimates err a little."""
    service_s = program.service_s * rng.uniform(1.0 - spread, 1.0 + spread)
    launching_s = program.launching_s * rng.uniform(0.95, 1.05)
    return JobModel(
        name,
        0.0,
        service_s,
        Request(gpu_memory_bytes=program.memory_bytes, exclusive=not shares),
        launching_s=launching_s,
        saving_s=program.saving_s,
        utilisation=program.utilisation,
        memory_bytes=program.memory_bytes,
        kind=program.name,
        estimate=Estimate(
            service_s * max(0.5, rng.gauss(1.0, 0.1)),
            launching_s * max(0.5, rng.gauss(1.0, 0.1)),
            program.saving_s,
            program.utilisation,
            program.memory_bytes,
        ),
    )


def _run(
    nodes: list[Node], jobs: list[JobModel], profile: str, *, gates: bool = True, heartbeat_s: float = 0.0
) -> Results:
    world = World(
        nodes,
        jobs,
        without_patience(profile),
        physics=Slowdowns(Network(), Interference()),
        abilities=ALL if gates else WITHOUT_GATES,
        heartbeat_s=heartbeat_s,
        report_s=1.0 if len(nodes) == 1 else 60.0,
        keep_timeline=True,
    )
    results = world.run()
    assert not results.unfinished, results.unfinished
    return results


def _idle_s(jobs: list[JobModel], profile: str, *, gates: bool, heartbeat_s: float = 0.0) -> float:
    """Seconds from the first training to the last in which the card does not train."""
    results = _run(_card(), jobs, profile, gates=gates, heartbeat_s=heartbeat_s)
    spans = sorted((span.start_s, span.end_s) for span in results.timeline if span.training)
    busy_s, until = 0.0, spans[0][0]
    for start, end in spans:
        busy_s += max(0.0, end - max(start, until))
        until = max(until, end)
    return until - spans[0][0] - busy_s
