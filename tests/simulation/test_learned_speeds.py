"""Elastic runs of a program, generation after generation: each is scheduled by what those before have taught.

The rows are made from what the simulation did: which run had how many devices, for how long, at the true speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import Known
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.physics import Undisturbed
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.world import World
from prefect_gpu.storage.finished import finished_run
from prefect_gpu.storage.row import HistoryRow

GPUS, STEPS = 4, 6000
SCALES = (10.0, 18.0, 25.0, 31.0)
SATURATES = (10.0, 15.0, 14.0, 12.0)


def jobs(truth: Sequence[float], *, every_s: float, count: int = 6) -> list[JobModel]:
    request = Request(1, max_gpus=GPUS, preemptible=True)
    return [
        JobModel(
            f"run-{at}",
            every_s * at,
            STEPS / truth[0],
            request,
            launching_s=10.0,
            checkpoint_s=2.0,
            throughput=tuple(truth),
            kind="train",
        )
        for at in range(count)
    ]


def simulate(models: list[JobModel], estimate: Callable[[JobModel], Estimate]) -> Results:
    node = Node("a", tuple(Device(f"a{at}", "x", 8 << 30) for at in range(GPUS)), ())
    world = World([node], models, without_patience("adaptive"), physics=Undisturbed(), estimate=estimate,
                  keep_timeline=True)  # fmt: skip
    return world.run()


def trained_on(results: Results) -> dict[str, dict[int, float]]:
    """By run, the seconds that it trained on each number of devices; the last number last."""
    launches: dict[tuple[str, float, float], int] = defaultdict(int)
    for span in results.timeline:
        if span.training:
            launches[span.job, span.start_s, span.end_s] += 1
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for (job, start, end), devices in sorted(launches.items(), key=lambda item: item[0][1]):
        found[job][devices] = found[job].pop(devices, 0.0) + end - start
    return found


def rows(results: Results, truth: Sequence[float], generation: int) -> list[HistoryRow]:
    made = []
    for job, seconds in trained_on(results).items():
        [ended] = [one.end_s for one in results.finished if one.job == job]
        assert ended is not None
        last = list(seconds)[-1]
        done = {str(devices): [truth[devices - 1] * spent, spent] for devices, spent in seconds.items()}
        first = round(sum(steps for devices, (steps, _) in done.items() if devices != str(last)))
        features = {"gpus": 1, "steps": STEPS, "max_gpus": GPUS, "speeds": done, "resumed_at": first}
        made.append(
            HistoryRow(
                f"{generation}-{job}", "train", "completed", generation * 1e6 + ended, features=features,
                requested_gpus=1, devices=tuple(f"a{at}" for at in range(last)), steps_done=STEPS,
                trained_s=seconds[last], prepared_s=10.0, saved_s=0.0,
            )
        )  # fmt: skip
    return made


def taught(history: Sequence[HistoryRow]) -> Callable[[JobModel], Estimate]:
    speeds = Estimator([run for run in map(finished_run, history) if run is not None]).throughput(Known("train"), GPUS)
    return lambda _: Estimate(throughput=speeds)


def test_the_second_generation_uses_what_the_first_taught() -> None:
    models = jobs(SCALES, every_s=150.0)
    first = simulate(models, lambda _: Estimate())
    assert {tuple(on) for on in trained_on(first).values()} == {(1,)}, "of a new program nothing is known"
    history = rows(first, SCALES, 1)
    second = simulate(models, taught(history))
    assert any(len(on) > 1 or 1 not in on for on in trained_on(second).values()), "more devices are tried"
    assert second.makespan_s < first.makespan_s
    # A single run that was resized tells of each number of devices that it had, though it ended on one of them.
    resized = next(row for row in rows(second, SCALES, 2) if len(row.features["speeds"]) > 1)
    had = [int(devices) for devices in resized.features["speeds"]]
    speeds = taught([resized])(models[0]).throughput
    assert all(abs(speeds[devices - 1] / SCALES[devices - 1] - 1) < 0.1 for devices in had)
    history += rows(second, SCALES, 2)
    third, knowing = simulate(models, taught(history)), simulate(models, lambda _: Estimate(throughput=SCALES))
    assert third.makespan_s <= 1.05 * knowing.makespan_s


def test_a_program_that_more_devices_do_not_help_is_not_given_them_again() -> None:
    models = jobs(SATURATES, every_s=700.0, count=3)  # each has the machine for itself
    history = rows(simulate(models, lambda _: Estimate()), SATURATES, 1)
    second = simulate(models, taught(history))
    assert {max(on) for on in trained_on(second).values()} == {GPUS}, "from one device alone it seems worth it"
    history += rows(second, SATURATES, 2)
    third = simulate(models, taught(history))
    assert max(max(on) for on in trained_on(third).values()) < GPUS
    history += rows(third, SATURATES, 3)
    fourth = simulate(models, taught(history))
    assert {max(on) for on in trained_on(fourth).values()} == {2}, "where it is fastest"
    assert fourth.makespan_s < second.makespan_s
