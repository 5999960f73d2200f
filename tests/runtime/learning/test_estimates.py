"""What the scheduler is told of a run, from its submission to its last step."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import (
    LAUNCHING_S,
    MEMORY_BYTES,
    NETWORK_BYTES_PER_S,
    SAVING_S,
    STEP_S,
    TRAINING_S,
    UTILISATION,
    FinishedRun,
    Interval,
    Known,
    RunEstimate,
)
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.learning.estimates import NOTHING_TOLD, Estimates, as_row, to_plan
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.training import protocol
from tests.runtime.launches import launched


def finished(number: int, step_s: float, steps: int = 100) -> FinishedRun:
    measured = {
        LAUNCHING_S: 2.0,
        STEP_S: step_s,
        TRAINING_S: step_s * steps,
        SAVING_S: 1.0,
        MEMORY_BYTES: 1e9 + number * 1e6,
        UTILISATION: 0.5,
    }
    return FinishedRun(f"run-{number}", Known("train", {"steps": steps}, {"steps": steps}), measured, ended_at=number)


@pytest.fixture
def learned() -> Estimator:
    return Estimator([finished(number, 0.1 + 0.001 * (number % 3)) for number in range(12)])


def a_run() -> Launch:
    return launched(place=Placement("n", ("g",), ()), known={"features": {"gpus": 1}})


def entered(estimates: Estimates, run: Launch, at: float) -> ev.JobEstimated | None:
    """The run, whose record is up to date, says that it trains."""
    run.phase = protocol.TRAINING
    return told_of(estimates.reported(run, protocol.PHASE, at, {}))


def progressed(estimates: Estimates, run: Launch, at: float) -> ev.JobEstimated | None:
    """The run, whose record is up to date, reports its progress."""
    return told_of(estimates.reported(run, protocol.PROGRESS, at, {}))


def told_of(events: Iterable[ev.Event]) -> ev.JobEstimated | None:
    return next((event for event in [*events] if isinstance(event, ev.JobEstimated)), None)


def test_nothing_is_told_of_a_run_that_nothing_is_known_of() -> None:
    estimates = Estimates()
    assert estimates.submitted("a", Known("train")) == NOTHING_TOLD
    assert estimates.renewed("a") is None
    assert as_row(estimates.of("a")) == {}
    assert as_row(estimates.of("never heard of")) == {}


def test_a_waiting_run_is_told_of_again_when_more_was_learned(learned: Estimator) -> None:
    estimates = Estimates()
    estimates.submitted("a", Known("train", {"steps": 200}))
    estimates.estimator = learned
    told = estimates.renewed("a")
    assert isinstance(told, ev.JobEstimated)
    assert told.estimate.service_s == pytest.approx(20.2, rel=0.1)
    assert told.estimate.memory_bytes is not None
    assert told.estimate.memory_bytes > 1.0e9
    assert estimates.renewed("a") is None, "nothing new"


def test_what_is_known_of_its_speed_on_more_devices_stays_known_while_it_trains(learned: Estimator) -> None:
    estimates = Estimates()
    estimates.estimator = learned
    told = estimates.submitted("a", Known("train", {"steps": 200}, {"gpus": 1}), max_gpus=4)
    assert len(told.throughput) == 4
    run = a_run()
    run.record.known["features"] = {"gpus": 1, "steps": 200}
    run.record.progress = {"first_step": 0, "steps": 200}
    events = [entered(estimates, run, 100.0)]
    for step in range(1, 60):
        run.record.progress["step"] = step
        events.append(progressed(estimates, run, 100.0 + 0.3 * step))
    corrected = [event for event in events if event is not None]
    assert corrected, "its steps take three times as long as expected"
    assert all(event.estimate.throughput == told.throughput for event in corrected)


def test_times_are_medians_and_memory_is_the_upper_end() -> None:
    targets = {
        TRAINING_S: Interval(10.0, 5.0, 20.0),
        MEMORY_BYTES: Interval(1e9, 5e8, 3e9),
        UTILISATION: Interval(0.5, 0.4, 0.6),
        NETWORK_BYTES_PER_S: Interval(2e8, 1e8, 3e8),
    }
    plan = to_plan(RunEstimate(targets, from_runs=5))
    assert (plan.service_s, plan.memory_bytes, plan.utilisation) == (10.0, 3_000_000_000, 0.5)
    unseen = to_plan(RunEstimate(targets, from_runs=0))
    assert (unseen.service_s, unseen.memory_bytes, unseen.utilisation) == (10.0, None, None)
    assert (plan.sent_bps, unseen.sent_bps) == (1e8, None)
    failed = to_plan(RunEstimate(targets, from_runs=0, ran_out_of_memory=True))
    assert failed.memory_bytes == 3_000_000_000


def test_what_a_run_measures_replaces_what_was_expected_of_it(learned: Estimator) -> None:
    estimates = Estimates()
    estimates.estimator = learned
    estimates.submitted("a", Known("train", {"steps": 100}))
    run = a_run()
    run.enter(protocol.TRAINING, 1000.0, {"steps": 100})
    entered(estimates, run, 1000.0)
    last = None
    for step in range(1, 11):  # five times as slow as its earlier runs
        run.progressed({"step": step, "steps": 100})
        last = progressed(estimates, run, 1000.0 + 0.5 * step) or last
    assert isinstance(last, ev.JobEstimated)
    outlook = estimates.outlook("a", 1005.0)
    assert outlook is not None
    assert outlook.total_s.median == pytest.approx(50.0, rel=0.05)
    assert last.estimate.service_s == pytest.approx(50.0, rel=0.15)
    assert estimates.drift("a") == pytest.approx(5.0, rel=0.2)
    assert estimates.renewed("a") is None, "what it measures counts, not what others did"
    estimates.forget("a")
    assert estimates.outlook("a", 1005.0) is None


def test_the_steps_that_a_restored_run_had_done_are_not_taken_for_quick_ones(learned: Estimator) -> None:
    estimates = Estimates()
    estimates.estimator = learned
    estimates.submitted("a", Known("train", {"steps": 100}))
    run = a_run()
    run.enter(protocol.TRAINING, 1000.0, {"step": 50, "steps": 100})
    entered(estimates, run, 1000.0)
    for step in range(51, 71):
        run.progressed({"step": step, "steps": 100})
        progressed(estimates, run, 1000.0 + 0.5 * (step - 50))
    outlook = estimates.outlook("a", 1010.0)
    assert outlook is not None and outlook.remaining_s.median == pytest.approx(15.0, rel=0.05)


def test_of_a_run_that_carries_on_the_whole_is_told_as_the_scheduler_counts_it(learned: Estimator) -> None:
    done_s = {"a": 4.0}
    estimates = Estimates(done_s.__getitem__)
    estimates.estimator = learned
    estimates.submitted("a", Known("train", {"steps": 100}))
    run = a_run()
    run.enter(protocol.TRAINING, 1000.0, {"step": 60, "steps": 100})  # 40 steps of 0.1 s are left
    told = entered(estimates, run, 1000.0)
    if told is not None:  # it is as was planned, or nearly
        assert told.estimate.service_s == pytest.approx(4.0 + 4.0, rel=0.05)
    for step in range(61, 81):  # half as fast
        run.progressed({"step": step, "steps": 100})
        told = progressed(estimates, run, 1000.0 + 0.2 * (step - 60)) or told
    assert told is not None and told.estimate.service_s == pytest.approx(4.0 + 8.0, rel=0.15)


def test_memory_that_a_run_has_reached_is_told_at_once_if_it_is_more_than_expected(learned: Estimator) -> None:
    estimates = Estimates()
    estimates.estimator = learned
    estimates.submitted("a", Known("train", {"steps": 100}))
    run = a_run()
    run.enter(protocol.TRAINING, 1000.0, {"steps": 100})
    entered(estimates, run, 1000.0)
    run.used({"device_memory_bytes": 7_000_000_000})
    run.progressed({"step": 10, "steps": 100})
    told = progressed(estimates, run, 1010.0)
    assert told is not None
    assert told.estimate.memory_bytes == 7_000_000_000


ELASTIC = Request(max_gpus=4, preemptible=True)


def elastic(devices: int, speeds: dict[str, list[float]] | None = None) -> Launch:
    place = Placement("n", tuple(f"g{at}" for at in range(devices)), ())
    return launched(place=place, request=ELASTIC, known={"features": {"steps": 10_000}}, speeds=speeds or {})


def trains(estimates: Estimates, run: Launch, rate: float, begin: float, first: int = 0) -> tuple[float, ...]:
    """A launch trains a hundred steps at this rate; the throughput that was told last."""
    run.enter(protocol.TRAINING, begin, {"step": first})
    events = [entered(estimates, run, begin)]
    for step in range(first + 1, first + 101):
        at = begin + (step - first) / rate
        run.progressed({"step": step, "steps": 10_000}, at)
        events.append(progressed(estimates, run, at))
    told = [event.estimate.throughput for event in events if event is not None]
    return told[-1] if told else ()


def test_an_elastic_run_that_nobody_knows_is_measured_and_may_grow_then() -> None:
    estimates = Estimates()
    assert estimates.submitted("a", Known("new"), 4).throughput == ()
    told = trains(estimates, elastic(1), 10.0, 1000.0)
    assert told == pytest.approx((10.0, 16.7, 21.4, 25.0), abs=0.1), "a fifth of each step is taken as fixed"
    assert estimates.throughput("a") == (told, {1: pytest.approx(10.0)})


def test_an_elastic_run_that_grew_and_got_no_faster_is_promised_nothing_from_there_on(learned: Estimator) -> None:
    estimates = Estimates()
    estimates.estimator = learned
    known = Known("train", {"steps": 100})
    promised = estimates.submitted("a", known, 4).throughput
    assert promised[1] > 1.5 * promised[0]
    alone = elastic(1)
    trains(estimates, alone, 10.0, 1000.0)
    estimates.released(alone, 0.0, True)  # it moves
    grown = elastic(2, estimates.speeds("a"))
    told = trains(estimates, grown, 9.5, 2000.0, first=100)
    assert told[:2] == pytest.approx((10.0, 9.5), rel=0.02)
    assert max(told) == told[0]
    estimates.released(grown, 0.0, True)  # it is stopped, waits, and is submitted again
    assert max(estimates.submitted("a", known, 4).throughput[1:]) <= 9.5 * 1.01
    estimates.forget("a")
    assert estimates.speeds("a") == {}
    assert estimates.submitted("a", known, 4).throughput == promised


def test_a_worker_that_adopts_an_elastic_run_knows_what_it_has_measured() -> None:
    estimates = Estimates()
    speeds = {"1": [100, 10.0], "2": [100, 5.0]}
    told = estimates.submitted("a", Known("new"), 4, speeds=speeds).throughput
    assert told[:2] == (10.0, 20.0) and told[3] > 20.0


def test_an_elastic_run_is_not_slow_because_it_has_other_devices_than_it_asked_for() -> None:
    runs = [finished(at, 0.1) for at in range(6)] + [
        FinishedRun(
            f"on-4-{at}", Known("train", {"steps": 100}, {"steps": 100}, gpus=4), {STEP_S: 0.03}, ended_at=10 + at
        )
        for at in range(6)
    ]
    estimates = Estimates()
    estimates.estimator = Estimator(runs)
    estimates.submitted("a", Known("train", {"steps": 100}), 4)
    trains(estimates, elastic(4), 1 / 0.03, 1000.0)
    assert estimates.drift("a") is None


def test_a_plan_is_not_renewed_for_every_step(learned: Estimator) -> None:
    estimates = Estimates()
    estimates.estimator = learned
    estimates.submitted("a", Known("train", {"steps": 10_000}), 4)
    run = elastic(1)
    run.enter(protocol.TRAINING, 1000.0, {})
    told = set()
    for step in range(1, 3000):
        at = 1000.0 + 0.1 * step * (1 + 0.03 * (step % 7 == 0))
        run.progressed({"step": step, "steps": 10_000}, at)
        event = progressed(estimates, run, at)
        if event is not None:
            told.add(event.estimate.throughput)
    assert len(told) <= 2


def test_a_batch_is_chosen_with_the_devices_by_what_the_run_has_measured() -> None:
    request = Request(1, max_workers=4, batch_sizes=(64, 1024), preemptible=True)
    alone, four = Placement("n", ("g0",), ()), Placement("n", ("g0", "g1", "g2", "g3"), ())
    estimates = Estimates()
    told = estimates.submitted("a", Known("train"), 4, wide=True, batch_sizes=request.batch_sizes)
    assert not any(told.throughput) and estimates.batch_size("a", four) == 64
    run = launched(place=alone, request=request, batch_size=64)
    run.enter(protocol.TRAINING, 0.0, {"step": 0})
    entered(estimates, run, 0.0)
    for step in range(1, 40):
        data = {"step": step, "batches": step, "noise_scale": 10_000.0}
        run.note(protocol.PROGRESS, step * 0.1, data)
        event = progressed(estimates, run, step * 0.1)
        told = told if event is None else event.estimate
    assert told.throughput[0] == pytest.approx(10.0, rel=0.05), "with the batch that it has"
    assert told.throughput[3] > told.apart[3] > 40, "with a larger one"
    assert estimates.batch_size("a", four) == 1024
    estimates.released(run, 4.0, carries_on=True)
    again = estimates.submitted("a", Known("train"), 4, wide=True, batch_sizes=request.batch_sizes)
    assert estimates.batch_size("a", four) == 1024 and again.throughput[0] > 15, "there, too, it may grow then"
    estimates.forget("a")
    assert estimates.batch_size("a", four) is None
