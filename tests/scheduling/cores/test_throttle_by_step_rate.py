"""CPU flows that slow training down are slowed down themselves, going by step rates."""

from __future__ import annotations

from prefect_gpu.scheduling.cores.throttle import LEAST_WEIGHT
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Instruction, SetCores, SetShare
from prefect_gpu.scheduling.model.jobs import Request
from tests.scheduling.cores.test_knee import Pool


class Beside(Pool):
    """Training that knows its pace, and then CPU flows beside it. Its rate follows from what they may do."""

    def __init__(self, *flows: int, harm: float = 0.4, to_blame: bool = True, cpus: int = 8) -> None:
        super().__init__(cpus)
        self.weights: dict[str, float] = {}
        self.harm, self.to_blame = harm, to_blame
        self.flows = [f"flow-{number}" for number in range(len(flows))]
        self.start("training", Request(cpus=2))  # a number that was asked for is not tuned
        self.train("training", lambda _: 10.0, 10)
        for name, cores in zip(self.flows, flows, strict=True):
            self.tell(ev.JobSubmitted(name, Request(0, cpus=cores), "q", self.now, self.now))
        self.full = sum(flows)

    @property
    def power(self) -> float:
        """How much the flows compute, in cores."""
        running = [name for name in self.flows if name in self.scheduler.state.running]
        return sum(self.cores(name) * self.weights.get(name, 1.0) for name in running)

    @property
    def rate(self) -> float:
        return 10.0 * (1.0 - self.harm * (self.power / self.full if self.to_blame else 1.0))

    def goes_on(self, looks: int) -> list[Instruction]:
        """Three reports between two looks at the node."""
        said: list[Instruction] = []
        for _ in range(looks):
            for _ in range(3):
                said += self.tell(ev.SpeedMeasured("training", self.rate), 1.0)
            use = tuple((name, self.cores(name) / 8) for name in self.flows if name in self.scheduler.state.running)
            said += self.tell(ev.PressureMeasured("n", 0.9, use))
            self.weights |= {one.job: one.weight for one in said if isinstance(one, SetShare)}
        return said


def test_a_flow_with_one_core_gets_a_smaller_part_of_the_time() -> None:
    pool = Beside(1)
    pool.goes_on(10)
    assert LEAST_WEIGHT <= pool.weights["flow-0"] < 0.2
    assert pool.rate >= 10.0 - 0.2 * 4.0  # four fifths of what was lost


def test_cores_are_halved_first() -> None:
    pool = Beside(4)
    said = pool.goes_on(4)
    assert isinstance(said[0], SetCores)
    assert len(said[0].cpus) == 2


def test_a_small_loss_harms_nobody() -> None:
    assert Beside(4, harm=0.06).goes_on(10) == []


def test_whoever_was_not_to_blame_gets_everything_back() -> None:
    pool = Beside(2, to_blame=False)
    pool.goes_on(20)
    assert pool.weights["flow-0"] == 1.0
    assert pool.cores("flow-0") == 2
    assert pool.goes_on(20) == []  # and is left alone then


def test_all_comes_back_with_the_end_of_training() -> None:
    pool = Beside(2)
    pool.goes_on(10)
    assert pool.power < 0.5
    said = pool.tell(ev.JobEnded("training", "done"))
    pool.weights |= {one.job: one.weight for one in said if isinstance(one, SetShare)}
    assert pool.power == 2


def test_after_a_while_it_is_tried_whether_training_can_do_without() -> None:
    pool = Beside(2)
    pool.goes_on(10)
    pool.harm = 0.0  # the flow does something else now
    pool.goes_on(120)
    assert pool.power == 2


def test_tries_in_vain_become_rare() -> None:
    pool = Beside(1)
    pool.goes_on(10)
    early, late = (len(pool.goes_on(130)) for _ in range(2))
    assert 0 < late < early


def test_the_flow_that_computes_most_comes_first() -> None:
    pool = Beside(1, 3)
    said = pool.goes_on(3)
    assert said[0].job == "flow-1"


def test_a_run_that_never_trained_without_the_flow_says_nothing() -> None:
    pool = Pool(cpus=8)
    pool.tell(ev.JobSubmitted("flow", Request(0, cpus=2), "q", 0.0, 0.0))
    pool.start("training", Request(cpus=2))
    for rate in (10.0, 5.0):
        assert pool.train("training", lambda _, rate=rate: rate, 10) == []  # type: ignore[misc]
        assert pool.tell(ev.PressureMeasured("n", 1.0, (("flow", 0.2),))) == []
