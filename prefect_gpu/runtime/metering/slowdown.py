"""How much runs slow each other down, on a device or on a network: each one's step rate alone and beside each other.

Alone is before the neighbour began to train, or after it was done. Nothing is taken from estimates: those rest on runs
that may have had company themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from prefect_gpu.runtime.launch.launch import Follower, Launch
from prefect_gpu.scheduling.interference.sensitivity import Key, placed_key
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.storage.row import ContentionRow
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


class SlowdownMeter(Follower):
    """Follows the progress of one launch, if it shares devices or is on several nodes.

    A pair on devices is measured while exactly two runs train there, both with a full share; what is found stands in
    the launch's ``slowdowns``, for the history. A rate is compared only with rates on as many cores.

    A pair on a network is measured while exactly one other run that is on several nodes trains on any of a run's nodes;
    the event names both as they are placed. Runs that are on one node alone send nothing to others, but use the same
    cores and memory: a rate is compared only with rates beside the same of those. Runs on several nodes that share
    their devices are measured as those on devices.

    Args:
        launches: All that there are.
        keep: Told of what was measured on a network, before the scheduler is: one of the two may be stopped for it.
    """

    def __init__(self, launches: Collection[Launch], keep: Callable[[ContentionRow], None]) -> None:
        self._launches, self._keep = launches, keep
        self._company: _Company | None = None
        self._last: tuple[int, float] = (0, 0.0)
        self._rates: dict[tuple[tuple[int, frozenset[str]], str | Key], _Rate] = {}
        self._told: dict[str | Key, tuple[float, float]] = {}  # when, and what

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> Iterator[ev.SlowdownMeasured]:
        """See :class:`.Follower`."""
        step = launch.record.progress.get("step")
        if kind != protocol.PROGRESS or launch.phase != protocol.TRAINING or not isinstance(step, int):
            return
        if not (_shares(launch) or _is_spread(launch)):
            return
        company = _company_on_devices if _shares(launch) else _company_on_nodes
        now = company(launch, self._launches, at)
        before, (last_step, last_at) = self._company, self._last
        self._company, self._last = now, (step, at)
        # The first report after a change says where to count from: what came before it belongs to the old company.
        if now is None or now != before or step < last_step or at <= last_at:
            return
        rate = self._rates.setdefault((now.setting, now.beside), _Rate())
        rate.steps += step - last_step
        rate.seconds += at - last_at
        for measured in self._measured(launch, now, at):
            if measured.pair is not None:
                self._keep(_row(measured.job, *measured.pair, measured.slowdown, at))
            yield measured

    def _measured(self, launch: Launch, now: _Company, at: float) -> list[ev.SlowdownMeasured]:
        spread = not _shares(launch)
        alone = self._rates.get((now.setting, _ALONE))
        if alone is None or not alone.known(spread):
            return []
        found = []
        for (setting, beside), rate in self._rates.items():
            concerned = beside != _ALONE and setting == now.setting and now.beside in (beside, _ALONE)
            if not concerned or not rate.known(spread):
                continue
            slowdown = round(alone.over(rate), 4)
            told_at, told = self._told.get(beside, (-math.inf, 0.0))
            if at - told_at < _EVERY_S or (spread and abs(slowdown - told) <= _NEWS * told):
                continue
            self._told[beside] = (at, slowdown)
            if isinstance(beside, Key):
                own = placed_key(launch.record.request, launch.record.placement)
                found.append(ev.SlowdownMeasured(launch.run_id, slowdown, pair=(own, beside)))
            else:
                launch.slowdowns[beside] = slowdown
                found.append(ev.SlowdownMeasured(launch.run_id, slowdown, beside))
        return found


def _row(run_id: str, own: Key, other: Key, slowdown: float, at: float) -> ContentionRow:
    return ContentionRow(
        run_id, own.model, own.gpus, own.nodes, other.model, other.gpus, other.nodes, slowdown, measured_at=at
    )


def _shares(run: Launch) -> bool:
    return run.record.placement.shared


def _nodes(run: Launch) -> set[str]:
    return {part.node for part in run.record.placement.parts if part.devices}


def _is_spread(run: Launch) -> bool:
    return bool(run.record.placement.others) and bool(run.record.request.kind) and len(_nodes(run)) > 1


def _training(run: Launch, runs: Iterable[Launch]) -> list[Launch]:
    """The others that train at all."""
    return [one for one in runs if one is not run and one.phase == protocol.TRAINING and one.record.weight > 0.0]


def _company_on_devices(run: Launch, runs: Iterable[Launch], at: float) -> _Company | None:
    """Who trains beside a run on its devices now; None if its rate would say nothing of a pair."""
    devices = set(run.record.placement.all_devices)
    beside = [one for one in _training(run, runs) if devices.intersection(one.record.placement.all_devices)]
    program = beside[0].record.request.kind if beside else _ALONE
    return _company(run, beside, program, frozenset(), at)


def _company_on_nodes(run: Launch, runs: Iterable[Launch], at: float) -> _Company | None:
    """Likewise of a run on several nodes: who else on them trains on several."""
    nodes = _nodes(run)
    others = [one for one in _training(run, runs) if nodes & _nodes(one)]
    beside = [one for one in others if len(_nodes(one)) > 1]
    local = frozenset(one.run_id for one in others if one not in beside)
    other: str | Key = _ALONE
    if beside and beside[0].record.request.kind:
        other = placed_key(beside[0].record.request, beside[0].record.placement)
    return _company(run, beside, other, local, at)


def _company(run: Launch, beside: list[Launch], other: str | Key, local: frozenset[str], at: float) -> _Company | None:
    if len(beside) > 1 or any(one.record.weight < 1.0 for one in (run, *beside)):
        return None
    if beside and not other:
        return None
    setting = (len(run.record.placement.cpus), local)
    return _Company(setting, frozenset(one.run_id for one in beside), other, run.demoted_s(at))
