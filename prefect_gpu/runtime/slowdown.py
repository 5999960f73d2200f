"""How much runs slow each other down, on a device or on a network: each one's step rate alone and beside each other.

Alone is before the neighbour began to train, or after it was done. Nothing is taken from estimates: those rest on runs
that may have had company themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from prefect_gpu.runtime.tracked import TrackedRun
from prefect_gpu.scheduling.interference.sensitivity import Key, placed_key
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.training import protocol

_LEAST_S = 3.0  # a rate is one from so many seconds and so many steps on
_LEAST_STEPS = 5
_EVERY_S = 1.0
# On a network a run may be stopped for what is measured, which costs it more than a pause: there is more to show first.
_LEAST_S_SPREAD = 10.0
_LEAST_STEPS_SPREAD = 10
_NEWS = 0.05  # and said again only when it has changed by this part
_ALONE = ""


class _Company(NamedTuple):
    """What a run's rate depends on. While it stays the same, steps and seconds add up.

    Attributes:
        setting: What must be the same for two rates to be compared.
        others: Runs that slow it down on what is measured.
        beside: The only one of them, as its program or, on a network, as it is placed; _ALONE: there is none.
        demoted_s: So far: it changes whenever the run itself has had to give way.
    """

    setting: tuple[int, frozenset[str]]
    others: frozenset[str]
    beside: str | Key
    demoted_s: float | None


@dataclass
class _Rate:
    steps: int = 0
    seconds: float = 0.0

    def known(self, spread: bool) -> bool:
        if spread:
            return self.steps >= _LEAST_STEPS_SPREAD and self.seconds >= _LEAST_S_SPREAD
        return self.steps >= _LEAST_STEPS and self.seconds >= _LEAST_S

    def over(self, other: _Rate) -> float:
        return (self.steps / self.seconds) / (other.steps / other.seconds)


@dataclass
class _Followed:
    company: _Company | None = None
    last: tuple[int, float] = (0, 0.0)
    rates: dict[tuple[tuple[int, frozenset[str]], str | Key], _Rate] = field(default_factory=dict)
    told: dict[str | Key, tuple[float, float]] = field(default_factory=dict)  # when, and what


class Slowdowns:
    """Follows the progress of runs that share devices, or are on several nodes.

    A pair on devices is measured while exactly two runs train there, both with a full share; what is found stands in
    the run's ``slowdowns``, for the history. A rate is compared only with rates on as many cores.

    A pair on a network is measured while exactly one other run that is on several nodes trains on any of a run's nodes;
    the event names both as they are placed. Runs that are on one node alone send nothing to others, but use the same
    cores and memory: a rate is compared only with rates beside the same of those. Runs on several nodes that share
    their devices are measured as those on devices.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Followed] = {}

    def progressed(self, run: TrackedRun, runs: Iterable[TrackedRun], at: float) -> list[ev.SlowdownMeasured]:
        """A run has come as far as its record says, at a time in Unix seconds.

        Args:
            runs: All that are launched.
        """
        step = run.record.progress.get("step")
        if not (_shares(run) or _is_spread(run)) or run.phase != protocol.TRAINING or not isinstance(step, int):
            return []
        followed = self._runs.setdefault(run.run_id, _Followed())
        company = _company_on_devices(run, runs, at) if _shares(run) else _company_on_nodes(run, runs, at)
        before, (last_step, last_at) = followed.company, followed.last
        followed.company, followed.last = company, (step, at)
        # The first report after a change says where to count from: what came before it belongs to the old company.
        if company is None or company != before or step < last_step or at <= last_at:
            return []
        rate = followed.rates.setdefault((company.setting, company.beside), _Rate())
        rate.steps += step - last_step
        rate.seconds += at - last_at
        return self._measured(run, followed, company, at)

    def _measured(self, run: TrackedRun, followed: _Followed, now: _Company, at: float) -> list[ev.SlowdownMeasured]:
        spread = not _shares(run)
        alone = followed.rates.get((now.setting, _ALONE))
        if alone is None or not alone.known(spread):
            return []
        found = []
        for (setting, beside), rate in followed.rates.items():
            concerned = beside != _ALONE and setting == now.setting and now.beside in (beside, _ALONE)
            if not concerned or not rate.known(spread):
                continue
            slowdown = round(alone.over(rate), 4)
            told_at, told = followed.told.get(beside, (-math.inf, 0.0))
            if at - told_at < _EVERY_S or (spread and abs(slowdown - told) <= _NEWS * told):
                continue
            followed.told[beside] = (at, slowdown)
            if isinstance(beside, Key):
                own = placed_key(run.record.request, run.record.placement)
                found.append(ev.SlowdownMeasured(run.run_id, slowdown, pair=(own, beside)))
            else:
                run.slowdowns[beside] = slowdown
                found.append(ev.SlowdownMeasured(run.run_id, slowdown, beside))
        return found

    def forget(self, run_id: str) -> None:
        """The run is over."""
        self._runs.pop(run_id, None)


def _shares(run: TrackedRun) -> bool:
    return run.record.placement.shared


def _nodes(run: TrackedRun) -> set[str]:
    return {part.node for part in run.record.placement.parts if part.devices}


def _is_spread(run: TrackedRun) -> bool:
    return bool(run.record.placement.others) and bool(run.record.request.kind) and len(_nodes(run)) > 1


def _training(run: TrackedRun, runs: Iterable[TrackedRun]) -> list[TrackedRun]:
    """The others that train at all."""
    return [one for one in runs if one is not run and one.phase == protocol.TRAINING and one.record.weight > 0.0]


def _company_on_devices(run: TrackedRun, runs: Iterable[TrackedRun], at: float) -> _Company | None:
    """Who trains beside a run on its devices now; None if its rate would say nothing of a pair."""
    devices = set(run.record.placement.all_devices)
    beside = [one for one in _training(run, runs) if devices.intersection(one.record.placement.all_devices)]
    program = beside[0].record.request.kind if beside else _ALONE
    return _company(run, beside, program, frozenset(), at)


def _company_on_nodes(run: TrackedRun, runs: Iterable[TrackedRun], at: float) -> _Company | None:
    """Likewise of a run on several nodes: who else on them trains on several."""
    nodes = _nodes(run)
    others = [one for one in _training(run, runs) if nodes & _nodes(one)]
    beside = [one for one in others if len(_nodes(one)) > 1]
    local = frozenset(one.run_id for one in others if one not in beside)
    other: str | Key = _ALONE
    if beside and beside[0].record.request.kind:
        other = placed_key(beside[0].record.request, beside[0].record.placement)
    return _company(run, beside, other, local, at)


def _company(
    run: TrackedRun, beside: list[TrackedRun], other: str | Key, local: frozenset[str], at: float
) -> _Company | None:
    if len(beside) > 1 or any(one.record.weight < 1.0 for one in (run, *beside)):
        return None
    if beside and not other:
        return None
    setting = (len(run.record.placement.cpus), local)
    return _Company(setting, frozenset(one.run_id for one in beside), other, run.demoted_s(at))
