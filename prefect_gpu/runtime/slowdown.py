"""How much runs that share a device slow each other down: each one's step rate alone and beside each neighbour.

Alone is before the neighbour began to train, or after it was done. Nothing is taken from estimates: those rest on runs
that may have had company themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from prefect_gpu.runtime.tracked import TrackedRun
from prefect_gpu.scheduling import events as ev
from prefect_gpu.training import protocol

_LEAST_S = 3.0  # a rate is one from so many seconds and so many steps on
_LEAST_STEPS = 5
_EVERY_S = 1.0
_ALONE = ""


class _Company(NamedTuple):
    """What a run's rate depends on. While it stays the same, steps and seconds add up."""

    cores: int
    others: frozenset[str]
    program: str  # of the only other one; _ALONE: there is none
    demoted_s: float | None  # so far: it changes whenever the run itself has had to give way


@dataclass
class _Rate:
    steps: int = 0
    seconds: float = 0.0

    @property
    def known(self) -> bool:
        return self.steps >= _LEAST_STEPS and self.seconds >= _LEAST_S

    def over(self, other: _Rate) -> float:
        return (self.steps / self.seconds) / (other.steps / other.seconds)


@dataclass
class _Followed:
    company: _Company | None = None
    last: tuple[int, float] = (0, 0.0)
    rates: dict[tuple[int, str], _Rate] = field(default_factory=dict)  # by cores and program beside it
    told_at: dict[str, float] = field(default_factory=dict)


class Slowdowns:
    """Follows the progress of runs that share.

    A pair is measured while exactly two runs train on the devices, both with a full share. A rate is compared only with
    rates on as many cores. What is found stands in the run's ``slowdowns``, for the history.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Followed] = {}

    def progressed(self, run: TrackedRun, runs: Iterable[TrackedRun], at: float) -> list[ev.SlowdownMeasured]:
        """A run has come as far as its record says, at a time in Unix seconds.

        Args:
            runs: All that are launched.
        """
        step = run.record.progress.get("step")
        if not run.record.placement.shared or run.phase != protocol.TRAINING or not isinstance(step, int):
            return []
        followed = self._runs.setdefault(run.run_id, _Followed())
        company = _company(run, runs, at)
        before, (last_step, last_at) = followed.company, followed.last
        followed.company, followed.last = company, (step, at)
        # The first report after a change says where to count from: what came before it belongs to the old company.
        if company is None or company != before or step < last_step or at <= last_at:
            return []
        rate = followed.rates.setdefault((company.cores, company.program), _Rate())
        rate.steps += step - last_step
        rate.seconds += at - last_at
        return self._measured(run, followed, company, at)

    def _measured(self, run: TrackedRun, followed: _Followed, now: _Company, at: float) -> list[ev.SlowdownMeasured]:
        alone = followed.rates.get((now.cores, _ALONE))
        if alone is None or not alone.known:
            return []
        found = []
        for (cores, program), rate in followed.rates.items():
            news = program != _ALONE and cores == now.cores and now.program in (program, _ALONE)
            if news and rate.known and at - followed.told_at.get(program, -math.inf) >= _EVERY_S:
                followed.told_at[program] = at
                run.slowdowns[program] = round(alone.over(rate), 4)
                found.append(ev.SlowdownMeasured(run.run_id, run.slowdowns[program], program))
        return found

    def forget(self, run_id: str) -> None:
        """The run is over."""
        self._runs.pop(run_id, None)


def _company(run: TrackedRun, runs: Iterable[TrackedRun], at: float) -> _Company | None:
    """Who trains beside a run now; None if its rate would say nothing of a pair."""
    devices = set(run.record.placement.all_devices)
    beside = [
        other
        for other in runs
        if other is not run
        and other.phase == protocol.TRAINING
        and other.record.weight > 0.0
        and devices.intersection(other.record.placement.all_devices)
    ]
    if len(beside) > 1 or any(one.record.weight < 1.0 for one in (run, *beside)):
        return None
    program = beside[0].record.request.kind if beside else _ALONE
    if beside and not program:
        return None
    others = frozenset(other.run_id for other in beside)
    return _Company(len(run.record.placement.cpus), others, program, run.demoted_s(at))
