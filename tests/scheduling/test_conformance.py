"""All policies pass the exported suites. A new policy is listed here."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.baselines import profiles as baselines
from prefect_gpu.papers.baselines.orders import Drf, Priority, Srsf
from prefect_gpu.papers.baselines.strict import Strict
from prefect_gpu.papers.coda.free_cores import FreeCores
from prefect_gpu.papers.coda.multi_array import MultiArray
from prefect_gpu.papers.deepshare.even_spread import EvenSpread
from prefect_gpu.papers.deepshare.greedy import ContentionAware
from prefect_gpu.papers.deepshare.peer_orders import LeastComplete, MostServed
from prefect_gpu.papers.deepshare.rounds import Rounds, StopAll
from prefect_gpu.papers.liquid.sharing import EstimatedUse
from prefect_gpu.papers.liquid.window import Window
from prefect_gpu.papers.specon.round_robin import RoundRobin
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.batch import Batch
from prefect_gpu.scheduling.cores.cpu_array import CpuArray, Lending
from prefect_gpu.scheduling.cores.throttle import ThrottleByBandwidth, ThrottleByStepRate
from prefect_gpu.scheduling.cores.tuning import CoreTuning
from prefect_gpu.scheduling.elastic.resize import Protection, Resize
from prefect_gpu.scheduling.interference.guard import InterferenceGuard
from prefect_gpu.scheduling.interference.preempt_on_slowdown import PreemptOnSlowdown
from prefect_gpu.scheduling.order import orders
from prefect_gpu.scheduling.placement.best_fit import BestFit
from prefect_gpu.scheduling.placement.keep_worth import KeepWorth
from prefect_gpu.scheduling.placement.spread import Spread
from prefect_gpu.scheduling.preemption.make_room import MakeRoom
from prefect_gpu.scheduling.preemption.minimum_runtime import MinimumRuntime
from prefect_gpu.scheduling.prescheduling.successor import Prescheduling
from prefect_gpu.scheduling.profiles.adaptive import adaptive
from prefect_gpu.scheduling.sharing.demotion import Demotion
from prefect_gpu.scheduling.sharing.rules import DeclaredMemory, KnownCompany, NoSharing
from prefect_gpu.scheduling.sharing.speculation import Speculation
from prefect_gpu.scheduling.sharing.take_turns import TakeTurns
from prefect_gpu.simulation.conformance import (
    AllocationConformance,
    OrderConformance,
    PlacementConformance,
    ReactionConformance,
    SharingConformance,
)

ORDERS = [orders.Fifo, Priority, orders.Sjf, orders.Srtf, Srsf, orders.Las, orders.DiscretizedLas,
          orders.LeastService, Drf, MostServed, LeastComplete,
          lambda: orders.HigherFirst(orders.LeastService())]  # fmt: skip
PLACEMENTS = {
    **{one.__name__: one for one in (BestFit, RoundRobin, Spread, FreeCores, EvenSpread)},
    "CpuArray": lambda: CpuArray(BestFit()),
    "KeepWorth": lambda: KeepWorth(Spread()),
    **{name: lambda make=make: make().placement for name, make in baselines.PROFILES.items() if name != "tiresias"},
}
SHARING = [NoSharing, DeclaredMemory, EstimatedUse, KnownCompany]
REACTIONS = [MinimumRuntime, Prescheduling, Speculation, Demotion, ThrottleByBandwidth, CoreTuning, Protection,
             TakeTurns, Lending, lambda: ThrottleByStepRate(ThrottleByBandwidth()), PreemptOnSlowdown]  # fmt: skip
# TiresiasQueues is not listed: where stopping takes time, it can stop and start the same jobs for ever.
ALLOCATIONS = {
    "backfill": lambda: (Backfill(),),
    "easy": lambda: (Backfill(reserve_first=True),),
    "strict": lambda: (Strict(),),
    "make room": lambda: (Backfill(MakeRoom()),),
    "guard": lambda: (Backfill(MakeRoom(urgent=True), InterferenceGuard()),),
    "batch": lambda: (Window(), Batch(), Backfill()),
    "resize": lambda: (Resize(), Backfill()),
    "adaptive": lambda: adaptive().allocation,
    "arrays": lambda: (MultiArray(),),
    "contention": lambda: (Rounds(), ContentionAware()),
    "rounds": lambda: (Rounds(), StopAll(), Strict()),
}


def called(make: object) -> str:
    return getattr(make, "__name__", "")


@pytest.mark.parametrize("make", ORDERS, ids=called)
class TestOrders(OrderConformance):
    pass


@pytest.mark.parametrize("make", PLACEMENTS.values(), ids=PLACEMENTS)
class TestPlacements(PlacementConformance):
    pass


@pytest.mark.parametrize("make", SHARING, ids=called)
class TestSharing(SharingConformance):
    pass


@pytest.mark.parametrize("make", REACTIONS, ids=called)
class TestReactions(ReactionConformance):
    pass


@pytest.mark.parametrize("make", ALLOCATIONS.values(), ids=ALLOCATIONS)
class TestAllocations(AllocationConformance):
    pass
