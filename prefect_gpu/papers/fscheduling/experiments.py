"""F-scheduling's experiment (Seo, 2020, §5): four elastic jobs on one machine with six GPUs."""

from __future__ import annotations

from prefect_gpu.papers.comparison import Comparison
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.world import World

GPUS = 6
STEPS = 2000
MEMORY_BYTES = 12 << 30
LAUNCHING_S = 30.0
CHECKPOINT_S = 5.0

FIXED_AND_DIVIDED_S = {"resnet-50": (387.0, 736.0), "inception-v3": (420.0, 837.0)}
"""For each model, the seconds of a whole run (launch included) that do not shrink with the GPUs, and those that do.

The thesis' figure of f is lost. With T(n) = a + b/n for each of the models these four numbers are just what its four
totals of static slots give: 1,557 s = 300 + T(1) of Inception V3; 1,593 s = the sum of T(2); 1,498 s = 100 + twice
T(3) of Inception V3; 2,138 s = twice the sum of T(6).
"""
ARRIVALS = ((0.0, "resnet-50"), (100.0, "inception-v3"), (200.0, "resnet-50"), (300.0, "inception-v3"))
STATIC_S = {1: 1557.0, 2: 1593.0, 3: 1498.0, 6: 2138.0}
PAPER_S = 1350.0

ASSUMED = (
    f"The table of f is lost: T(n) = a + b/n for each model, from the four totals of static slots; a launch takes "
    f"{LAUNCHING_S:g} s of it, a checkpoint {CHECKPOINT_S:g} s (neither is printed)."
)


def machine() -> Node:
    """Six TITAN Xp."""
    return Node("machine", tuple(Device(f"gpu-{n}", "titan-xp", MEMORY_BYTES) for n in range(GPUS)), ())


def training_s(model: str, gpus: int) -> float:
    """Seconds that all steps of a model take on so many GPUs, without launching."""
    fixed, divided = FIXED_AND_DIVIDED_S[model]
    return fixed - LAUNCHING_S + divided / gpus


def jobs(slot: int | None = None) -> list[JobModel]:
    """The four jobs: elastic from one GPU to all, or, with ``slot``, each with exactly so many."""
    made = []
    for number, (submit_s, model) in enumerate(ARRIVALS):
        steps_per_s = tuple(STEPS / training_s(model, gpus) for gpus in range(1, GPUS + 1))
        made.append(
            JobModel(
                f"{number}-{model}",
                submit_s,
                training_s(model, slot or 1),
                Request(slot or 1, max_gpus=None if slot else GPUS, preemptible=True, kind=model),
                launching_s=LAUNCHING_S,
                checkpoint_s=CHECKPOINT_S,
                estimate=Estimate(throughput=steps_per_s),
                throughput=steps_per_s,
                kind=model,
            )
        )
    return made


def run(profile: str, slot: int | None = None, *, keep_timeline: bool = False) -> Results:
    """The workload under a profile; with ``slot``, in static slots of so many GPUs."""
    return World([machine()], jobs(slot), without_patience(profile), keep_timeline=keep_timeline).run()


def compare(quick: bool = False) -> list[Comparison]:
    """Total time against each of the static divisions; ``quick`` makes no difference, for it takes milliseconds."""
    ours = "adaptive"
    result, adaptive = run("f-scheduling").makespan_s, run(ours).makespan_s
    return [
        Comparison(
            "f-scheduling",
            "4 elastic jobs on 6 GPUs",
            "total time (s)",
            f"static slots of {slot}",
            paper,
            PAPER_S,
            1 - PAPER_S / paper,
            run("fifo", slot).makespan_s,
            result,
            adaptive,
            assumed=ASSUMED,
        )
        for slot, paper in STATIC_S.items()
    ]
