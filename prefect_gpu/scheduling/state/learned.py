"""What is learned while jobs run. It lies on the state, so every policy reads the same, and forecasts know it."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, fields

from prefect_gpu.scheduling.cores.search import CoreHistory
from prefect_gpu.scheduling.fair_share.usage import Usage
from prefect_gpu.scheduling.interference.anti_affinity import AntiAffinity
from prefect_gpu.scheduling.interference.sensitivity import SensitivityTable
from prefect_gpu.scheduling.promises.reach import Reach
from prefect_gpu.scheduling.sharing.incompatible import Incompatible
from prefect_gpu.scheduling.state.asked import Asked
from prefect_gpu.scheduling.state.demand import Demand
from prefect_gpu.scheduling.state.lengths import Lengths


@dataclass(frozen=True)
class Learned:
    """Filled by the reactions of the profile; a profile without them leaves it as it begins.

    Their dicts and sets hold nothing that is changed in place: :meth:`copy` relies on it.

    Attributes:
        sensitivity: How much jobs on several nodes slow each other down.
        anti_affinity: Which jobs were stopped because of which.
        incompatible: Which programs never share a device again.
        cores: How many cores jobs needed.
        lengths: How long jobs held their devices; filled by the scheduler itself.
        asked: What jobs asked for; likewise.
        usage: What owners have had, and were owed; likewise, where there are shares.
        reach: How promises ended; likewise.
        demand: What comes for each kind of device; likewise.
    """

    sensitivity: SensitivityTable = field(default_factory=SensitivityTable)
    anti_affinity: AntiAffinity = field(default_factory=AntiAffinity)
    incompatible: Incompatible = field(default_factory=Incompatible)
    cores: CoreHistory = field(default_factory=CoreHistory)
    lengths: Lengths = field(default_factory=Lengths)
    asked: Asked = field(default_factory=Asked)
    usage: Usage = field(default_factory=Usage)
    reach: Reach = field(default_factory=Reach)
    demand: Demand = field(default_factory=Demand)

    def copy(self) -> Learned:
        """The same knowledge, which learns on its own from now on."""
        twins = {one.name: copy(getattr(self, one.name)) for one in fields(self)}
        for twin in twins.values():
            for name, value in vars(twin).items():
                if isinstance(value, dict | set):
                    setattr(twin, name, value.copy())
        return Learned(**twins)
