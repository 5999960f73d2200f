"""SpeCon's experiments (Mao et al., §VI): short trainings that share workers of 16 cores, with their loss curves."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from prefect_gpu.papers.comparison import Comparison
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.simulation.effects.company import Company
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.world import World

CHECKPOINT_S = 2.0
RESTORE_S = 2.5
LOSS_IN_COMPANY = 0.5
VARIATION = 0.1
REPORT_S = 10.0

FIRST_FIFTH = {"rnn": 0.90, "gru": 0.90, "vae": 0.65, "dynamic-rnn": 0.90, "bi-rnn": 0.98}
"""Of the whole reduction of its loss, the part that a model has after a fifth of its time (§III-A; RNNs assumed)."""
LONGER = {"rnn": -1.0, "gru": -0.5, "vae": 0.0, "dynamic-rnn": 0.5, "bi-rnn": 1.0}
"""How much longer a model trains than the mean, in units of :attr:`Setting.spread`."""


@dataclass(frozen=True)
class Setting:
    """One experiment.

    Attributes:
        alone_s: Mean seconds of a training that has a worker to itself; calibrated on the baseline.
        spread: By which part of ``alone_s`` the longest model exceeds it; calibrated on the baseline.
        every_s: Seconds between submissions; 0: at random within ``within_s``.
        models: Those that are drawn from.
        mean_improvement: The printed improvement of the mean completion time.
        makespan_s: Makespan, (baseline, SpeCon) as printed.
        mean_s: Mean completion time likewise; None where only its improvement is printed. (For the baseline of the
            second experiment, its printed gains and losses add up to 710 s: that is what was calibrated on.)
    """

    name: str
    workers: int
    jobs: int
    alone_s: float
    spread: float
    models: tuple[str, ...]
    mean_improvement: float
    makespan_s: tuple[float, float]
    mean_s: tuple[float, float] | None = None
    every_s: float = 0.0
    within_s: float = 0.0


_ALL = tuple(FIRST_FIFTH)
SETTINGS = (
    Setting("20 VAE, one every 50 s", 4, 20, 202.7, 0.0, ("vae",), 0.147, (1260, 1190), (275.2, 234.7), every_s=50),
    Setting("20 random in 300 s", 4, 20, 164.5, 0.76, _ALL, 0.136, (1421, 1070), within_s=300),
    Setting("30 random in 600 s", 4, 30, 146.0, 0.5, _ALL, 0.076, (1760, 1498), (865.7, 800.2), within_s=600),
    Setting(
        "50 random in 1,200 s, 8 workers", 8, 50, 207.4, 0.42, _ALL, 0.072, (2070, 1840), (596.3, 553), within_s=1200
    ),
)


def cluster(workers: int) -> list[Node]:
    """Workers without GPUs: what the trainings of one share is a single device, its 16 cores."""
    return [Node(f"worker-{n}", (Device(f"cores-{n}", "16-cores", 1 << 36),), ()) for n in range(1, workers + 1)]


@cache
def curve(first_fifth: float, points: int = 100) -> tuple[float, ...]:
    """An exponential loss from 1 to 0 over a training, with so much of its reduction in the first fifth of the time."""
    low, high = 0.01, 100.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if math.expm1(-0.2 * rate) / math.expm1(-rate) < first_fifth else (low, rate)
    return tuple(1.0 - math.expm1(-rate * n / points) / math.expm1(-rate) for n in range(points + 1))


def jobs(setting: Setting, seed: int) -> list[JobModel]:
    """One draw of models, times of submission and durations, all from the seed."""
    draw = random.Random(seed)
    if setting.every_s:
        times = [number * setting.every_s for number in range(setting.jobs)]
    else:
        times = sorted(draw.uniform(0.0, setting.within_s) for _ in range(setting.jobs))
    made = []
    for number, submit_s in enumerate(times):
        model = draw.choice(setting.models)
        alone_s = setting.alone_s * (1.0 + setting.spread * LONGER[model])
        made.append(
            JobModel(
                f"job-{number + 1:02d}",
                submit_s,
                alone_s * math.exp(draw.gauss(-(VARIATION**2) / 2, VARIATION)),
                Request(gpu_memory_bytes=1 << 30, exclusive=False, preemptible=True, kind=model),
                checkpoint_s=CHECKPOINT_S,
                restore_s=RESTORE_S,
                losses=curve(FIRST_FIFTH[model]),
                kind=model,
            )
        )
    return made


def run(setting: Setting, profile: str, seed: int, *, keep_timeline: bool = False) -> Results:
    """One experiment once under a profile."""
    return World(
        cluster(setting.workers),
        jobs(setting, seed),
        without_patience(profile),
        physics=Company(LOSS_IN_COMPANY),
        report_s=REPORT_S,
        keep_timeline=keep_timeline,
    ).run()


def means(setting: Setting, profile: str, seeds: Sequence[int]) -> tuple[float, float]:
    """(mean completion time, makespan) in seconds, averaged over the seeds."""
    results = [run(setting, profile, seed) for seed in seeds]
    mean_s = sum(outcome.jct_s for one in results for outcome in one.finished) / sum(one.jobs for one in results)
    return mean_s, sum(one.makespan_s for one in results) / len(results)


def compare(quick: bool = False) -> list[Comparison]:
    """Mean completion time and makespan of each experiment; ``quick``: two of them, two draws."""
    ours = "adaptive"
    rows: list[Comparison] = []
    for setting in SETTINGS[:2] if quick else SETTINGS:
        seeds = range(2 if quick else 20)
        profiles = ("round-robin", "specon-printed", "specon", ours)
        base, printed, result, adaptive = (means(setting, profile, seeds) for profile in profiles)
        makespan = 1 - setting.makespan_s[1] / setting.makespan_s[0]
        for at, (metric, paper, improvement) in enumerate(
            (
                ("mean completion time (s)", setting.mean_s or (None, None), setting.mean_improvement),
                ("makespan (s)", setting.makespan_s, makespan),
            )
        ):
            rows.append(
                Comparison(
                    "specon",
                    setting.name,
                    metric,
                    "spread by count, no migration",
                    paper[0],
                    paper[1],
                    improvement,
                    base[at],
                    result[at],
                    adaptive[at],
                    assumed=_assumed(setting, 1 - printed[at] / base[at]),
                )
            )
    return rows


def _assumed(setting: Setting, printed: float) -> str:
    return (
        f"Mean time alone ({setting.alone_s:g} s), spread of the models' times ({setting.spread:g}) and loss by "
        f"sharing a worker ({LOSS_IN_COMPANY:g}) calibrated on the baseline's mean and makespan; times vary by "
        f"{VARIATION:.0%} from run to run; loss curves are exponential; a run with a small share disturbs others "
        f"little. Means over several draws. SpeCon as printed, without what we add (workers evened out at once, larger "
        f"shares for converged runs, runs placed where nobody came for longest), gives {printed:+.1%} here."
    )
