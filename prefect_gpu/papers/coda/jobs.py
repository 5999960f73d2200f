"""CODA's cluster and its month of jobs (Zhao et al., 2020, §III and §VI), drawn for a few days."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.simulation.model import JobModel

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
NODES, GPUS_PER_NODE, CORES_PER_NODE = 80, 5, 28
GPU_JOBS_PER_HOUR = 25_000 / 720
CPU_JOBS_PER_HOUR = 75_000 / 720


@dataclass(frozen=True)
class Program:
    """One of the paper's models (Table I).

    Attributes:
        cores: Cores per GPU at which it is fastest (Fig. 5 is lost; around the paper's defaults for each category).
        utilisation: GPU utilisation there (Fig. 3 is lost).
        bandwidth: Part of a node's memory bandwidth that it uses per GPU.
        sensitivity: Part of its speed that it loses without bandwidth (§IV.C, Fig. 7).
        share: How often it is submitted: most are NLP and speech.
    """

    name: str
    category: str
    cores: int
    utilisation: float
    bandwidth: float
    sensitivity: float
    share: float


PROGRAMS = (
    Program("alexnet", "cv", 6, 0.50, 0.06, 0.4, 0.03),
    Program("vgg16", "cv", 3, 0.85, 0.02, 0.0, 0.05),
    Program("inception3", "cv", 3, 0.80, 0.02, 0.0, 0.05),
    Program("resnet50", "cv", 4, 0.75, 0.03, 0.0, 0.07),
    Program("bi-att-flow", "nlp", 5, 0.55, 0.01, 0.6, 0.08),
    Program("transformer", "nlp", 2, 0.70, 0.01, 0.5, 0.42),
    Program("wavenet", "speech", 5, 0.55, 0.05, 0.2, 0.10),
    Program("deepspeech", "speech", 4, 0.60, 0.03, 0.5, 0.20),
)


@dataclass(frozen=True)
class Mix:
    """What the paper does not say of the jobs; set so that FIFO and DRF show the paper's figures.

    Attributes:
        one_core: Of the GPU jobs that ask for one or two cores per GPU, the part that asks for one.
        tail: Exponent of the run times above two hours (a Pareto law up to 60 hours).
        burst: GPU jobs that are submitted together, on average.
        cpu_cores: Cores that CPU jobs hold on average over the day.
        day: By which part the rate of CPU jobs rises and falls in a day.
    """

    one_core: float = 0.13
    tail: float = 0.38
    burst: float = 20.0
    cpu_cores: float = 800.0
    day: float = 0.4


def cluster() -> tuple[Node, ...]:
    """80 nodes with 5 GPUs of 11 GB and 28 cores each."""
    return tuple(
        Node(
            f"n{number}",
            tuple(Device(f"n{number}g{gpu}", "1080Ti", 11 << 30) for gpu in range(GPUS_PER_NODE)),
            tuple(range(CORES_PER_NODE)),
        )
        for number in range(NODES)
    )


def jobs(days: float, seed: int, mix: Mix = Mix()) -> list[JobModel]:
    """The jobs of some days, in order of submission.

    The cluster is not empty at first: at time 0 jobs are submitted that have some of their time behind them.

    Args:
        days: How long jobs are submitted for.
        seed: Makes the draw repeatable.
        mix: What the paper does not say.
    """
    rng = np.random.default_rng(seed)
    gpu_jobs = _GpuJobs(rng, mix)
    drawn = [*gpu_jobs.running_at_first(), *gpu_jobs.submitted(days), *_cpu_jobs(rng, days, mix)]
    return sorted(drawn, key=lambda job: job.submit_s)


class _GpuJobs:
    """Draws GPU jobs. A few owners submit most of them; each has programs of its own, and submits several at once."""

    OWNERS = 14

    def __init__(self, rng: np.random.Generator, mix: Mix) -> None:
        self._rng = rng
        self._mix = mix
        self._count = 0
        weights = 1.0 / np.sqrt(np.arange(1, self.OWNERS + 1))
        self._weights = weights / weights.sum()
        shares = np.array([program.share for program in PROGRAMS])
        tenants = np.random.default_rng(0)  # the same in each draw of jobs
        self._programs = [tenants.choice(len(PROGRAMS), size=3, p=shares / shares.sum()) for _ in range(self.OWNERS)]

    def submitted(self, days: float) -> list[JobModel]:
        found: list[JobModel] = []
        now = 0.0
        while True:
            now += self._rng.exponential(HOUR_S / GPU_JOBS_PER_HOUR * self._mix.burst)
            if now >= days * DAY_S:
                return found
            owner = int(self._rng.choice(self.OWNERS, p=self._weights))
            for _ in range(self._rng.geometric(1 / self._mix.burst)):
                found.append(self._draw(now, owner, self._run_time_s()))

    def running_at_first(self) -> list[JobModel]:
        """Jobs that were submitted before, as they are met: long ones more often, each somewhere on its way."""
        times = np.array([self._run_time_s() for _ in range(4000)])
        count = int(GPU_JOBS_PER_HOUR / HOUR_S * times.mean())
        met = self._rng.choice(times, size=count, p=times / times.sum())
        owners = self._rng.choice(self.OWNERS, size=count, p=self._weights)
        left = met * self._rng.random(count)
        return [self._draw(0.0, int(owner), max(60.0, float(time))) for owner, time in zip(owners, left, strict=True)]

    def _draw(self, now: float, owner: int, run_time_s: float) -> JobModel:
        """One job that would run for so long with the cores that it asks for."""
        rng = self._rng
        program = PROGRAMS[rng.choice(self._programs[owner])]
        per_gpu = self._asked_per_gpu()
        gpus = int(rng.choice([1, 2], p=[0.9, 0.1])) if per_gpu > 7 else int(rng.choice([1, 2, 4], p=[0.6, 0.2, 0.2]))
        asked = min(CORES_PER_NODE, per_gpu * gpus)
        need = program.cores * gpus
        self._count += 1
        return JobModel(
            f"g{self._count}",
            now,
            run_time_s * min(1.0, asked / need),
            Request(
                gpus, cpus=asked, category=program.category, owner=f"u{owner}", preemptible=True, kind=program.name
            ),
            launching_s=20.0,
            checkpoint_s=20.0,
            utilisation=program.utilisation,
            cores=need,
            memory_bandwidth=program.bandwidth * gpus,
            memory_sensitivity=program.sensitivity,
            kind=program.name,
        )

    def _asked_per_gpu(self) -> int:
        """76.1 % ask for one or two cores per GPU, 15.3 % for more than ten (§III.A)."""
        at = self._rng.random()
        if at < 0.761:
            return 1 if self._rng.random() < self._mix.one_core else 2
        return int(self._rng.integers(11, 21) if at < 0.914 else self._rng.integers(3, 11))

    def _run_time_s(self) -> float:
        """68.5 % run for more than one hour, 39.6 % for more than two (§VI.F)."""
        at = self._rng.random()
        if at < 0.315:
            return HOUR_S * float(self._rng.uniform(0.1, 1.0))
        if at < 0.604:
            return HOUR_S * float(self._rng.uniform(1.0, 2.0))
        a, least, most = self._mix.tail, 2.0, 60.0
        cut = 1.0 - (least / most) ** a
        return HOUR_S * least * float((1.0 - cut * self._rng.random()) ** (-1.0 / a))


def _cpu_jobs(rng: np.random.Generator, days: float, mix: Mix) -> list[JobModel]:
    """CPU jobs, by day more than by night; one in two hundred uses most of a node's memory bandwidth (§VI.E)."""
    sizes, shares = np.array([1, 2, 4, 8, 16]), np.array([0.25, 0.25, 0.25, 0.15, 0.10])
    mean_s = mix.cpu_cores / (CPU_JOBS_PER_HOUR / HOUR_S) / float(sizes @ shares)
    weights = 1.0 / np.arange(1, 21)
    owners = rng.choice(20, size=200_000, p=weights / weights.sum())
    found: list[JobModel] = []
    now = 0.0
    while True:
        now += rng.exponential(HOUR_S / CPU_JOBS_PER_HOUR / (1 + mix.day))
        if now >= days * DAY_S:
            return found
        if rng.random() * (1 + mix.day) > 1 + mix.day * math.sin(2 * math.pi * now / DAY_S):
            continue
        hungry = rng.random() < 0.005
        cores = 16 if hungry else int(rng.choice(sizes, p=shares))
        time_s = float(rng.lognormal(math.log(mean_s) - 0.5, 1.0))
        owner = f"u{19 - owners[len(found)]}"  # who submits the most CPU jobs submits no GPU jobs
        request = Request(0, cpus=cores, owner=owner, preemptible=True)
        found.append(
            JobModel(
                f"c{len(found)}",
                now,
                12 * HOUR_S if hungry else max(10.0, time_s),
                request,
                memory_bandwidth=0.9 if hungry else 0.01 * cores / 4,
                resumes=False,
            )
        )
