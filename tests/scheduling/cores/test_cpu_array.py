"""CPU flows beside training where nobody can be stopped: who waits, on which cores, and who gives some up."""

from __future__ import annotations

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Hold, Instruction, Launch
from prefect_gpu.scheduling.model.jobs import Request
from tests.scheduling.cores.test_knee import Pool


def cpus(pool: Pool, job: str) -> tuple[int, ...]:
    placement = pool.scheduler.state.jobs[job].placement
    return placement.cpus if placement else ()


def submit(pool: Pool, job: str, cores: int, after_s: float = 0.0) -> list[Instruction]:
    pool.now += after_s
    return pool.tell(ev.JobSubmitted(job, Request(0, cpus=cores), "q", pool.now, pool.now))


def launched(said: list[Instruction]) -> list[str]:
    return [one.job for one in said if isinstance(one, Launch)]


def test_a_flow_starts_at_once_beside_a_run_that_never_asked_for_all_the_cores() -> None:
    pool = Pool(cpus=2)
    pool.start("training", Request())
    assert cpus(pool, "training") == (0, 1)
    submit(pool, "flow", 1)
    assert cpus(pool, "flow") == (1,)
    assert cpus(pool, "training") == (0,)


def test_the_cores_come_back_when_the_flow_has_ended() -> None:
    pool = Pool(cpus=4)
    pool.start("training", Request())
    submit(pool, "flow", 3)
    assert cpus(pool, "training") == (0,)
    pool.tell(ev.JobEnded("flow", "done"))
    assert cpus(pool, "training") == (0, 1, 2, 3)


def test_flows_wait_for_each_other_and_are_told_so() -> None:
    pool = Pool(cpus=4)
    pool.start("training", Request())
    assert launched(submit(pool, "one", 2)) == ["one"]
    said = submit(pool, "two", 2)
    assert [(one.job, one.code) for one in said if isinstance(one, Hold)] == [("two", "cores")]
    assert launched(pool.tell(ev.JobEnded("one", "done"))) == ["two"]


def test_a_core_is_left_for_each_free_device() -> None:
    pool = Pool(cpus=2)
    assert launched(submit(pool, "one", 1)) == ["one"]
    assert launched(submit(pool, "two", 1)) == []
    pool.start("training", Request())
    assert cpus(pool, "training") == (0,)


def test_a_flow_larger_than_the_array_runs_alone_in_it() -> None:
    pool = Pool(cpus=2)
    assert launched(submit(pool, "large", 2)) == ["large"]
    pool.start("training", Request())  # training never waits for cores
    assert len(cpus(pool, "training")) >= 1
    assert launched(submit(pool, "small", 1)) == []
    assert launched(pool.tell(ev.JobEnded("large", "done"))) == ["small"]


def test_whoever_has_waited_long_is_not_overtaken_for_ever() -> None:
    pool = Pool(cpus=4)
    submit(pool, "first", 2)
    submit(pool, "large", 3)
    patience_s = pool.scheduler.profile.patience_s
    pool.tell(ev.TimePassed(), patience_s - 1.0)
    assert cpus(pool, "large") == ()
    assert launched(pool.tell(ev.TimePassed(), 2.0)) == ["large"]


def test_what_was_found_for_a_run_is_not_taken_from_it() -> None:
    pool = Pool(cpus=8)
    pool.start("training", Request(category="cv"))
    pool.train("training", lambda cores: 10.0 * min(cores, 3))
    assert len(cpus(pool, "training")) == 3
    assert launched(submit(pool, "flow", 5)) == ["flow"]
    assert len(cpus(pool, "training")) == 3
    assert not set(cpus(pool, "training")) & set(cpus(pool, "flow"))
    assert launched(submit(pool, "late", 1)) == []


def test_a_number_of_cores_that_a_run_asked_for_stays_its_own() -> None:
    pool = Pool(cpus=4)
    pool.start("training", Request(cpus=3))
    submit(pool, "flow", 1)
    assert len(cpus(pool, "training")) == 3
    assert not set(cpus(pool, "training")) & set(cpus(pool, "flow"))


def test_a_flow_that_says_nothing_of_cores_starts_at_once() -> None:
    pool = Pool(cpus=2)
    pool.start("training", Request())
    submit(pool, "one", 1)
    said = pool.tell(ev.JobSubmitted("plain", Request(0), "q", pool.now, pool.now))
    assert launched(said) == ["plain"]


def test_a_run_on_a_node_that_is_lost_gets_no_cores_back() -> None:
    pool = Pool(cpus=4)
    pool.start("training", Request())
    submit(pool, "flow", 2)
    assert len(cpus(pool, "training")) == 2
    pool.tell(ev.NodesChanged(()))
    pool.tell(ev.JobEnded("flow", "its node is gone"))
    assert len(cpus(pool, "training")) == 2
