"""Listing 1 with throughputs that were learned: its guards (F-scheduling, §4.2 and §4.4) hold whatever was learned."""

from __future__ import annotations

import math
import random
from functools import cache

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import STEP_S, TRAINING_S, FinishedRun, Known
from prefect_gpu.estimation.throughput.speeds import assumed, corrected
from prefect_gpu.scheduling.elastic.listing1 import LEAST_GAIN_STEPS_PER_S, ElasticJob, assign
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Instruction, Launch, Move
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_until
from tests.scheduling.elastic.test_resize import ELASTIC, Machine
from tests.support import examples

MOST = 4


def truth(chance: random.Random) -> list[float]:
    """Steps per second on 1 to 4 devices; of some programs they rise, of some they fall at some point."""
    whole, fixed, sync = 2 ** chance.uniform(-5.0, 2.0), chance.uniform(0.0, 0.5), chance.choice([0.0, 0.1, 0.5, 2.0])
    return [1 / (whole * (fixed + (1 - fixed) / n + sync * (n - 1) / n)) for n in range(1, MOST + 1)]


@cache
def learned() -> tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]:
    """(What is true of a program, what was learned of it) from a few noisy runs on some numbers of devices each."""
    found = []
    for seed in range(24):
        chance = random.Random(seed)
        rates = truth(chance)
        runs = []
        for number in range(chance.randint(1, 6)):
            on = sorted(chance.sample(range(1, MOST + 1), chance.randint(1, 3)))
            own = {gpus: rates[gpus - 1] * chance.lognormvariate(0, 0.05) for gpus in on}
            measured = {STEP_S: 1 / own[on[-1]], TRAINING_S: 100 / own[on[-1]]}
            known = Known("train", {}, {"steps": 100}, gpus=on[-1])
            runs.append(FinishedRun(f"r{number}", known, measured, ended_at=number, steps=100, speeds=own))
        found.append((tuple(rates), Estimator(runs).throughput(Known("train"), MOST)))
    return tuple(found)


class Guarded(Machine):
    """Checks each resize against the two guards of §4.4, by what the scheduler was told of the runs."""

    def __init__(self) -> None:
        self.moves = 0
        super().__init__(nodes="ab")

    def send(self, event: ev.Event) -> list[Instruction]:
        jobs = self.scheduler.state.jobs
        had = {job.id: job.placement.devices for job in jobs.values() if job.placement}
        free_from = {
            job.id: left_alone_until(job, math.inf) if job.status is Status.TRAINING else math.inf
            for job in jobs.values()
        }
        said = super().send(event)
        starts = {one.placement.node for one in said if isinstance(one, Launch)}
        gain: dict[str, float] = {}
        for one in said:
            if isinstance(one, Move):
                self.moves += 1
                assert self.now >= free_from[one.job], "it is protected for three times what its launch took"
                rates = (0.0, *jobs[one.job].estimate.throughput)
                before, after = len(had[one.job]), len(one.placement.devices)
                if after > before:
                    assert rates[after] > max(rates[:after]), "it was given devices that do not make it faster"
                gain[one.placement.node] = gain.get(one.placement.node, 0.0) + rates[after] - rates[before]
        for node, gained in gain.items():
            assert node in starts or gained >= LEAST_GAIN_STEPS_PER_S - 1e-9, "not worth its restarts"
        return said


happenings = st.tuples(
    st.sampled_from(["submit", "submit", "end", "measure", "wait", "wait", "rigid"]), st.integers(0, 1000)
)


@given(st.lists(happenings, min_size=10, max_size=40))
@settings(max_examples=examples(1), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_resizes_keep_both_guards_whatever_was_learned(told: list[tuple[str, int]]) -> None:
    machine, rates = Guarded(), {}
    for number, (what, draw) in enumerate(told):
        running = [job for job in machine.scheduler.state.running.values() if job.placement and job.id in rates]
        if what == "submit":
            rates[f"j{number}"], promised = learned()[draw % len(learned())]
            promised = promised if draw % 3 else ()  # of some nobody knows anything
            machine.submit(f"j{number}", ELASTIC, Estimate(throughput=promised))
        elif what == "rigid":
            machine.submit(f"j{number}", Request(1 + draw % 3))
        elif what == "end" and machine.scheduler.state.running:
            ids = list(machine.scheduler.state.running)
            machine.send(ev.JobEnded(ids[draw % len(ids)], "completed"))
        elif what == "measure" and running:
            job = running[draw % len(running)]
            count = len(job.placement.devices) if job.placement else 1
            own = {count: rates[job.id][count - 1]}
            promised = corrected(job.estimate.throughput or assumed(MOST), own)
            machine.send(ev.JobEstimated(job.id, Estimate(throughput=promised)))
        else:
            machine.wait(draw % 100)


@given(st.lists(st.integers(0, 23), min_size=1, max_size=6), st.integers(1, 12))
def test_no_device_goes_where_runs_were_measured_to_be_no_faster(programs: list[int], gpus: int) -> None:
    jobs = [ElasticJob(f"j{at}", 1, MOST, (0.0, *learned()[program][1])) for at, program in enumerate(programs)]
    for name, count in assign(jobs, gpus).items():
        promised = learned()[programs[int(name[1:])]][1]
        assert all(promised[fewer - 1] < promised[count - 1] for fewer in range(1, count))


def test_a_run_that_was_grown_and_got_no_faster_goes_back_when_others_wait_and_never_grows_again() -> None:
    machine = Machine()
    rigid = Request(3)
    machine.submit("rigid", rigid)
    machine.submit("run", estimate=Estimate(throughput=corrected(assumed(4), {1: 10.0})))
    machine.wait(100.0)
    machine.send(ev.JobEnded("rigid", "completed"))
    assert machine.places == {"run": "a0 a1 a2 a3"}, "it could be faster, and nobody else wants them"
    machine.wait(100.0)
    machine.send(ev.JobEstimated("run", Estimate(throughput=corrected(assumed(4), {1: 10.0, 4: 10.0}))))
    said = machine.submit("rigid again", rigid)
    assert [type(one) for one in said] == [Move, Launch] and machine.places["run"] == "a0"
    machine.wait(100.0)
    machine.send(ev.JobEnded("rigid again", "completed"))
    machine.wait(100.0)
    assert machine.places == {"run": "a0"}


def test_a_run_that_two_devices_did_not_help_is_not_given_four() -> None:
    machine = Machine()
    machine.submit("rigid", Request(2))
    machine.submit("run", estimate=Estimate(throughput=corrected(assumed(4), {1: 10.0})))
    assert machine.places["run"] == "a2 a3"
    machine.wait(100.0)
    machine.send(ev.JobEstimated("run", Estimate(throughput=corrected(assumed(4), {1: 10.0, 2: 10.0}))))
    machine.send(ev.JobEnded("rigid", "completed"))
    machine.wait(100.0)
    assert machine.places["run"] == "a2 a3"


def test_a_run_that_got_slower_goes_back_by_itself() -> None:
    machine = Machine()
    machine.submit("run", estimate=Estimate(throughput=corrected(assumed(4), {1: 10.0})))
    machine.wait(100.0)
    assert machine.places == {"run": "a0 a1 a2 a3"}
    machine.send(ev.JobEstimated("run", Estimate(throughput=corrected(assumed(4), {1: 10.0, 4: 4.0}))))
    assert machine.places == {"run": "a0"}


def test_a_run_becomes_elastic_while_it_trains_once_it_was_measured() -> None:
    machine = Machine()
    machine.submit("run", estimate=Estimate())
    machine.wait(15.0)
    assert machine.places == {"run": "a0"}
    machine.send(ev.JobEstimated("run", Estimate(throughput=corrected(assumed(4), {1: 10.0}))))
    assert machine.places == {"run": "a0"}, "it is protected until 40 s"
    machine.wait(30.0)
    assert machine.places == {"run": "a0 a1 a2 a3"}
