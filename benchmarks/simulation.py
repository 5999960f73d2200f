"""How fast does the scheduler decide, and how fast is a simulation?

Four claims: a published trace is simulated at thousands of jobs per second; the time for one job grows no faster than
the logarithm of the number of jobs; ``adaptive`` decides in less than a millisecond on 64 nodes, in the mean; and one
event among 10,000 waiting jobs is decided in milliseconds.

    python -m benchmarks.simulation --trace PATH [--nodes 40] [--gpus 8] [--profile srtf] [--json] [--quick]

PATH is a trace in any known format. The claim is about cluster 7 of ElasticFlow's traces (12,699 jobs, public at
github.com/microsoft/elasticflow-traces) on 40 nodes with 8 GPUs each; without --trace it is left out. All times are of
the processor, and best of several: other programs only ever make them longer.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._claims import Claim, at_least, command_line, report
from prefect_gpu.papers.deepshare.mixes import decision_times
from prefect_gpu.papers.from_trace import ABILITIES, cluster, models, request, select, simulate
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Launch, OpenGate
from prefect_gpu.scheduling.model.jobs import Estimate, Status
from prefect_gpu.scheduling.order.orders import expected_end
from prefect_gpu.simulation.traces import TraceJob, read_trace
from prefect_gpu.simulation.world import World

JOBS_PER_S = 5000.0
EVENT_P99_MS = 20.0
SLACK = 1.3  # of the growth of the time per job over the ratio of the logarithms; memory grows, and caches do not
DECISION_MS = 1.0
USUAL_NODES, OVERLOAD, RESTART_S = 64, 1.25, 30.0
LARGE_NODES, LARGE_GPUS = 1000, 8
WAITING = 10_000
RENEWED = 32  # estimates that are renewed at most when a job ends
# Sizes as in published traces: most jobs ask for one GPU, a few for several nodes.
_SIZES, _SIZE_WEIGHTS = (1, 2, 4, 8, 16, 32), (60, 12, 12, 12, 3, 1)
_LOAD = 0.95
_MEDIAN_S, _SPREAD = 1800.0, 1.5  # of the durations: lognormal


def generate(count: int, devices: int, seed: int) -> list[TraceJob]:
    """Jobs that arrive at random, as many as fill 95 % of the devices."""
    rng = random.Random(seed)
    mean_s = _MEDIAN_S * math.exp(_SPREAD**2 / 2)
    mean_gpus = sum(s * w for s, w in zip(_SIZES, _SIZE_WEIGHTS, strict=True)) / sum(_SIZE_WEIGHTS)
    every_s = mean_s * mean_gpus / (_LOAD * devices)
    now, jobs = 0.0, []
    for number in range(count):
        now += rng.expovariate(1 / every_s)
        gpus = rng.choices(_SIZES, _SIZE_WEIGHTS)[0]
        jobs.append(TraceJob(f"{number:06d}", now, _MEDIAN_S * math.exp(rng.gauss(0.0, _SPREAD)), gpus))
    return jobs


def speed(trace: Path, nodes: int, gpus: int, profile: str, repeats: int) -> dict[str, Any]:
    """Jobs per second on a trace, the best of several times."""
    jobs = select(read_trace(trace), nodes * gpus).jobs
    rates, processor, summary = [], [], {}
    for _ in range(repeats):
        began = time.process_time()
        summary = simulate(jobs, profile, nodes=nodes, gpus_per_node=gpus).summary()
        processor.append(len(jobs) / (time.process_time() - began))
        rates.append(summary["jobs_per_s"])
    return {
        "jobs": len(jobs),
        "cluster": f"{nodes} x {gpus}",
        "profile": profile,
        "jobs_per_s": [round(rate) for rate in processor],
        "jobs_per_s_by_the_wall": [round(rate) for rate in rates],
        "mean_jct_s": round(summary["mean_jct_s"], 1),
        "decision_p99_ms": round(summary["decision_p99_s"] * 1000, 3),
    }


def scaling(counts: list[int], profile: str, repeats: int, *, at_once: bool = False) -> dict[str, Any]:
    """Microseconds per job for growing numbers of jobs, the best of several times.

    Args:
        at_once: All jobs are submitted at the beginning, instead of as many as fill 95 % of the devices.
    """
    per_job_us = {}
    for count in counts:
        jobs = generate(count, LARGE_NODES * LARGE_GPUS, seed=1)
        if at_once:
            jobs = [replace(job, submit_s=0.0) for job in jobs]
        took_s = []
        for _ in range(repeats):
            began = time.process_time()
            simulate(jobs, profile, nodes=LARGE_NODES, gpus_per_node=LARGE_GPUS)
            took_s.append(time.process_time() - began)
        per_job_us[count] = min(took_s) / count * 1e6
    logs = [(math.log(count), math.log(count * us)) for count, us in per_job_us.items()]
    exponent = statistics.linear_regression(*zip(*logs, strict=True)).slope
    return {
        "cluster": f"{LARGE_NODES} x {LARGE_GPUS}",
        "profile": profile,
        "microseconds_per_job": {count: round(us, 1) for count, us in per_job_us.items()},
        "fitted_exponent_of_jobs": round(exponent, 3),
    }


def growth_claim(name: str, found: dict[str, Any]) -> Claim:
    """That the time per job grows no faster than the logarithm of the jobs."""
    per_job = found["microseconds_per_job"]
    few, many = min(per_job), max(per_job)
    bound = SLACK * math.log(many) / math.log(few)
    return _at_most(f"{name}: time per job, {many:,} over {few:,} jobs", per_job[many] / per_job[few], bound)


def decisions(profile: str, count: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of a decision on 64 × 8 GPUs while more jobs arrive than they can serve, the best of several times.

    Lengths are known exactly; a job that was stopped loses 30 s. The beginning of a job's training is not counted,
    although it is looked at, too: that takes next to nothing.
    """
    jobs = generate(count, int(USUAL_NODES * LARGE_GPUS * OVERLOAD / _LOAD), seed=3)
    found: dict[str, Any] = {"mean_ms": math.inf}
    for _ in range(repeats):
        world = World(
            cluster(USUAL_NODES, LARGE_GPUS),
            models(jobs, RESTART_S),
            profile,
            abilities=ABILITIES,
            estimate=lambda model: Estimate(model.service_s, restart_s=RESTART_S),
        )
        took = decision_times(world.scheduler, counts=lambda event: not isinstance(event, ev.PhaseEntered))
        results = world.run()
        mean_ms = statistics.fmean(took) * 1000
        if mean_ms < found["mean_ms"]:
            found = {
                "profile": profile,
                "cluster": f"{USUAL_NODES} x {LARGE_GPUS}",
                "decisions": len(took),
                "starts_per_job": round(statistics.fmean(one.starts for one in results.outcomes), 2),
                "mean_ms": mean_ms,
                "p99_ms": round(sorted(took)[math.ceil(0.99 * len(took)) - 1] * 1000, 3),
            }
    return found


def one_event(profile: str, events: int) -> dict[str, Any]:
    """Milliseconds of one event while every device is busy and 10,000 jobs wait.

    Submissions, ends, and ends with which the estimates of 32 other jobs are renewed, by a fifth or so, come in turn.
    """
    devices = LARGE_NODES * LARGE_GPUS
    scheduler, rng, now = Scheduler(profile, ABILITIES), random.Random(1), 0.0
    scheduler.handle(ev.NodesChanged(cluster(LARGE_NODES, LARGE_GPUS)), now)
    jobs = iter(generate(10 * WAITING + events, devices, seed=2))

    def handle(*batch: ev.Event) -> float:
        began = time.process_time()
        instructions = scheduler.handle(batch[0] if len(batch) == 1 else ev.Together(batch), now)
        took_s = time.process_time() - began
        for one in instructions:
            if isinstance(one, OpenGate) or (isinstance(one, Launch) and one.behind is None):
                scheduler.handle(ev.PhaseEntered(one.job, Status.TRAINING), now)
        return took_s

    def submission() -> ev.Event:
        job = next(jobs)
        return ev.JobSubmitted(job.job_id, request(job), "default", now, now, "", Estimate(job.duration_s))

    while len(scheduler.state.queue_of_waiting) < WAITING:
        now += 1.0
        handle(*(submission() for _ in range(500)))
    times: dict[str, list[float]] = {"submission": [], "end": [], "end and 32 estimates": []}
    fewest = busiest = len(scheduler.state.queue_of_waiting)
    for number in range(events):
        in_front = [job for job in scheduler.state.running.values() if job.behind is None]
        next_end = min(in_front, key=expected_end)
        now = max(now, (now + expected_end(next_end)) / 2 if number % 2 else expected_end(next_end))
        if number % 2:
            times["submission"].append(handle(submission()))
        else:
            end = ev.JobEnded(next_end.id, "completed")
            renewed = rng.sample(sorted(set(scheduler.state.jobs) - {end.job}), RENEWED if number % 4 else 0)
            told = {name: scheduler.state.jobs[name].estimate.service_s or 0.0 for name in renewed}
            news = [ev.JobEstimated(name, Estimate(s * rng.lognormvariate(0.0, 0.2))) for name, s in told.items()]
            times["end and 32 estimates" if news else "end"].append(handle(end, *news))
        waiting = len(scheduler.state.queue_of_waiting)
        fewest, busiest = min(fewest, waiting), max(busiest, waiting)
    both = sorted(second for some in times.values() for second in some)
    return {
        "profile": profile,
        "waiting": [fewest, busiest],
        "running": len(scheduler.state.running),
        "p50_ms": round(statistics.median(both) * 1000, 3),
        "p99_ms": both[math.ceil(0.99 * len(both)) - 1] * 1000,
        "median_ms": {name: round(statistics.median(some) * 1000, 3) for name, some in times.items()},
    }


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="fewer jobs and events: less than a minute")
    parser.add_argument("--trace", type=Path, help="the trace of the first claim; without it, that claim is left out")
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node")
    parser.add_argument("--profile", default="srtf", help="of the first two claims")
    options = parser.parse_args()
    for name in ("nodes", "gpus"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}: give 1 or more")
    repeats = 2 if options.quick else 3
    counts = [2_500, 5_000, 10_000] if options.quick else [10_000, 25_000, 50_000, 100_000]

    claims: list[Claim] = []
    details: dict[str, Any] = {}
    if options.trace is not None:
        try:
            details["speed"] = speed(options.trace, options.nodes, options.gpus, options.profile, repeats)
        except (OSError, ValueError) as error:
            parser.error(f"--trace: {error}")
        best = max(details["speed"]["jobs_per_s"])
        claims.append(at_least(f"jobs per second under {options.profile}, best of {repeats}", best, JOBS_PER_S))
    details["scaling"] = scaling(counts, options.profile, repeats)
    claims.append(growth_claim("steady load", details["scaling"]))
    if not options.quick:  # few jobs would not fill the devices, and cost less each for that reason
        details["scaling_at_once"] = scaling(counts, options.profile, 1, at_once=True)
        claims.append(growth_claim("all submitted at once", details["scaling_at_once"]))
    details["decisions"] = decisions("adaptive", 1_000 if options.quick else 4_000, repeats)
    name = f"a decision of adaptive on {USUAL_NODES} nodes: mean in milliseconds"
    claims.append(_at_most(name, details["decisions"]["mean_ms"], DECISION_MS))
    details["one_event"] = []
    for profile in dict.fromkeys((options.profile, "adaptive")):
        found = one_event(profile, 400 if options.quick else 4000)
        details["one_event"].append(found)
        name = f"one event, {WAITING:,} waiting, {LARGE_NODES * LARGE_GPUS:,} GPUs, {profile}: p99 in milliseconds"
        claims.append(_at_most(name, found["p99_ms"], EVENT_P99_MS))
    return report("simulation", claims, details, as_json=options.json)


def _at_most(name: str, value: float, bound: float) -> Claim:
    return Claim(name, value, f"<= {bound:.4g}", value <= bound)


if __name__ == "__main__":
    sys.exit(main())
