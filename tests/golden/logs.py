"""The worlds in which every profile is heard."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import TypeVar

from prefect_gpu.papers import from_trace
from prefect_gpu.papers.coda import experiments as coda
from prefect_gpu.papers.coda.profiles import of_owners
from prefect_gpu.papers.deepshare import contended, mixes
from prefect_gpu.papers.deepshare.world import DeepShareWorld
from prefect_gpu.papers.fscheduling import experiments as fscheduling
from prefect_gpu.papers.liquid import experiments as liquid
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.papers.specon import experiments as specon
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.simulation.effects.cores import Cores
from prefect_gpu.simulation.effects.memory import MemoryBandwidth
from prefect_gpu.simulation.effects.network import Network
from prefect_gpu.simulation.effects.sharing import Interference
from prefect_gpu.simulation.physics import Slowdowns
from prefect_gpu.simulation.traces import ContentionTable, TraceJob, read_contention, read_trace
from prefect_gpu.simulation.world import World
from tests.components import traces_folder
from tests.scheduling.test_every_profile import JOBS, Outside

T = TypeVar("T")


@dataclass(frozen=True)
class Log:
    """A world with its jobs.

    Attributes:
        play: Lets a profile, by name, decide in it.
        traces: Whether it needs the folder of published traces.
    """

    play: Callable[[str], object]
    traces: bool = False


# -- traces -----------------------------------------------------------------------------------------------------------


@cache
def _trace(path: str, limit: int) -> tuple[TraceJob, ...]:
    return tuple(islice(read_trace(traces_folder() / path), limit))


def _ef_cluster07(profile: str) -> None:
    """The first jobs of a cluster's real arrivals, on far fewer nodes than it had, so that they have to wait."""
    jobs = from_trace.select(_trace("derived/ef_cluster07_muri_format.csv", 200), 32).jobs
    from_trace.simulate(jobs, profile, nodes=4, gpus_per_node=8, restart_cost_s=30.0)


def _muri_trace3(profile: str) -> None:
    jobs = _trace("Rivendile-Muri/trace-data/trace3.csv", 150)
    from_trace.simulate(jobs, profile, nodes=8, gpus_per_node=8, world="muri", sharing=profile == "adaptive")


@cache
def _measured() -> ContentionTable:
    return read_contention(traces_folder() / "gajagajago-deepshare" / "jobs")


def _deepshare_trace0(profile: str) -> None:
    jobs = _trace("gajagajago-deepshare/traces/simulate/trace0", 100)
    DeepShareWorld(jobs, _measured(), profile, flaw=False).run()


# -- one experiment of each paper -------------------------------------------------------------------------------------


def _liquid(profile: str) -> None:
    """Gangs that come at once, on nodes with two devices; then small jobs that may share the only one."""
    programs = [liquid.CNN_T4, liquid.NEUMF_T4, liquid.NEUMF_T4, liquid.CNN_T4] * 2
    small = [liquid._small(one, f"job-{at}", random.Random(at), shares=True) for at, one in enumerate(programs)]
    for nodes, jobs in ((liquid._t4_nodes(6), liquid._burst(2, 0)), (liquid._card(), small)):
        World(nodes, jobs, without_patience(profile), physics=Slowdowns(Network(), Interference()), report_s=5.0).run()


def _mixes(profile: str) -> None:
    """DeepShare's jobs where stopping has its price, and those of its profiles that can be told know the contention."""
    truth = mixes.Truth()
    mixes.run(mixes.draw(1, 192), truth.profile(profile, spread=True), truth)


def _coda(profile: str) -> None:
    World(
        coda.cluster()[:6],
        islice(coda.jobs(0.3, 1), 200, 320),  # with one that floods the memory of its node, which is what is eliminated
        without_patience(of_owners(profile)),
        physics=Slowdowns(Cores(), MemoryBandwidth()),
        report_s=coda.STEP_S,
        steady_report_s=coda.HOUR_S,
    ).run()


def _deepshare(profile: str) -> None:
    DeepShareWorld(contended.draw(0, 48), contended.predicted_table(), profile, flaw=False).run()


# -- random events ----------------------------------------------------------------------------------------------------


_LIVE = Abilities(Preemption.GRACEFUL, gates=True, cores=True, shares=True, finishes=True)
_MORE = (Abilities(gates=True, shares=True, finishes=True), Abilities(Preemption.INSTANT, cores=True, shares=True))


def _events(profile: str) -> None:
    """What no simulation has: runs that are withdrawn, fail, share, slow each other down, lose nodes, learn no more."""
    _random(profile, _LIVE, 300, _Draw(0, ("a", "d", "cd")))
    alone = Outside(profile, replace(_LIVE, gates=False), of_owners)
    alone.step(("nodes", "d"))
    _random(profile, _LIVE, 350, _Draw(1, crowded=True), alone)


def _more_events(profile: str) -> None:
    for seed, able in enumerate(_MORE, start=2):
        _random(profile, able, 400, _Draw(seed))


def _random(profile: str, able: Abilities, steps: int, draw: _Draw, outside: Outside | None = None) -> None:
    outside = outside or Outside(profile, able, of_owners)
    for _ in range(steps):
        outside.step(draw.step())


class _Draw:
    """Random steps that are the same under every version of Python: only ``random()`` is asked.

    Args:
        nodes: Which of them there may be.
        crowded: All jobs share devices, and the nodes stay as they are.
    """

    def __init__(self, seed: int, nodes: Sequence[str] = ("ab", "abc", "abd"), *, crowded: bool = False) -> None:
        self._random = random.Random(seed)
        self._kinds = ["shares"] if crowded else ["plain", "shares", "shares", "gang", "elastic", "cores"]
        self._nodes = ["d"] if crowded else nodes
        self._looks = ["looks"] * (8 if crowded else 2)

    def of(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def step(self) -> tuple[object, ...]:
        verb = self.of(
            ["submit"] * 6
            + ["train"] * 6
            + ["end", "end", "end", "save", "stopped", "stopped", "fail", "progress", "use", "slow", *self._looks]
            + ["beside", "pressure", "wait", "wait", "ring", "withdraw", "nodes"]
        )
        match verb:
            case "submit":
                return ("submit", self.of(JOBS), replace(self.request(), priority=self.of([0, 1, 2])), self.estimate())
            case "withdraw":
                return (verb, self.of(JOBS))
            case "progress":
                return (verb, self.of(range(9)), self.of([1.0, 20.0, 900.0]))
            case "looks":
                return (verb, self.of(range(4)), self.of([0.1, 0.1, 1.0]), self.of([4, 9]))
            case "use":
                return (verb, self.of(range(9)), self.of([0.1, 0.5, 0.9]))
            case "slow":
                return (verb, self.of(range(9)), self.of([1.0, 1.2, 2.0]))
            case "beside":
                return (verb, self.of([1.1, 4.0]))
            case "pressure":
                return (verb, self.of(["a", "b"]), self.of([0.1, 0.9]))
            case "wait":
                return (verb, self.of([1.0, 40.0, 100.0, 400.0]))
            case "ring":
                return (verb,)
            case "nodes":
                return (verb, self.of(self._nodes))
        return (verb, self.of(range(9)))

    def request(self) -> Request:
        kind = self.of(["vgg16", "bert"])
        match self.of(self._kinds):
            case "shares":
                return Request(
                    gpu_memory_bytes=self.of([1, 2, 4]),
                    exclusive=False,
                    preemptible=self.of([True, False]),
                    kind=kind,
                    converged=self.of(["", "yield", "stop"]),
                )
            case "gang":
                return Request(workers=self.of([2, 3]), servers=self.of([0, 1]), preemptible=True, kind=kind)
            case "elastic":
                return Request(max_gpus=4, preemptible=True, kind=kind)
            case "cores":
                return Request(0, cpus=self.of([1, 2]), preemptible=True, owner=self.of(["ada", "bob"]))
        return Request(
            self.of([1, 1, 2, 4]),
            self.of([None, 3]),
            self.of([None, 2]),
            category=self.of([None, "cv"]),
            preemptible=self.of([True, True, False]),
            owner=self.of(["ada", "bob"]),
            kind=kind,
        )

    def estimate(self) -> Estimate:
        return Estimate(
            service_s=self.of([None, 10.0, 100.0, 5000.0]),
            launching_s=self.of([0.0, 5.0]),
            saving_s=self.of([0.0, 3.0]),
            utilisation=self.of([None, 0.2, 0.9]),
            memory_bytes=self.of([None, 2, 4, 6]),
            throughput=(1.0, 1.8, 2.4, 2.8),
            sent_bps=self.of([None, 30.0]),
        )


LOGS: dict[str, Log] = {
    "ef-cluster07": Log(_ef_cluster07, traces=True),
    "muri-trace3": Log(_muri_trace3, traces=True),
    "deepshare-trace0": Log(_deepshare_trace0, traces=True),
    "liquid": Log(_liquid),
    "specon": Log(lambda profile: specon.run(specon.SETTINGS[2], profile, 0)),
    "fscheduling": Log(fscheduling.run),
    "deepshare": Log(_deepshare),
    "mixes": Log(_mixes),
    "coda": Log(_coda),
    "events": Log(_events),
    "more-events": Log(_more_events),
}
