"""What the rest of a node is still worth to the jobs that are expected: where a job takes the least of it, it goes.

The worth of a node's state, in thousandths of devices, is the sum of

1. what random jobs of the expected types use of it, arriving until it is full: the mean of fixed sequences (rollouts);
2. what its devices are worth by :func:`~.device_values.device_values`, so that parts are left that somebody fills;
3. what each type that asks for several devices could still use of it alone, by the type's frequency, over the root of
   the frequency of all these types: whole nodes stay whole.

A device of a scarce model has a price beside that: the part of the model's devices that is needed by jobs which can use
no other. Worths are remembered: an unknown state costs a tenth of a millisecond, and a known one hardly anything.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prefect_gpu.scheduling.placement.kernels.device_values import STEP_MILLI, WHOLE_MILLI, device_values

SEQUENCES = 16
LENGTH = 32
VALUES_WEIGHT = 2.0
WHOLE_WEIGHT = 0.4
"""Over the root of the part of all jobs that ask for several devices: as what is kept in hand for what comes at random
(square-root staffing)."""
DEMAND = 1.1
"""How much is expected to be asked for, of all devices, where the values of parts are found."""
CPU_STEP = 1000
MEMORY_STEP = 4096
"""Cores and memory that are left are rounded down to these, so that more states are alike."""
_MOST_KNOWN = 200_000
_MOST_SETS = 64
_SEED = 1


class Ask(NamedTuple):
    """What a job asks for on one node.

    Attributes:
        cpu: Thousandths of cores.
        memory: Of the node, in MiB.
        milli: Thousandths of each of its devices; whole ones if it asks for several.
        gpus: Devices; may be 0.
        models: Of which one will do; empty: any.
    """

    cpu: int
    memory: int
    milli: int
    gpus: int
    models: frozenset[str] = frozenset()


class Rest(NamedTuple):
    """What is left on a node.

    Attributes:
        model: Of its devices.
        cpu: Thousandths of cores.
        memory: MiB.
        milli: Thousandths of each device, ascending.
    """

    model: str
    cpu: int
    memory: int
    milli: tuple[int, ...]

    def less(self, ask: Ask, device: int = -1) -> Rest:
        """What is left when a job has come.

        Args:
            device: Place in ``milli`` of the device that it takes a part of, or -1 where it takes the last ones.
        """
        milli = [*self.milli]
        if ask.gpus == 1 and device >= 0:
            left = milli.pop(device) - ask.milli
            milli.insert(bisect_left(milli, left), left)
        elif ask.gpus:
            milli = sorted([*milli[: -ask.gpus], *(left - ask.milli for left in milli[-ask.gpus :])])
        return Rest(self.model, self.cpu - ask.cpu, self.memory - ask.memory, tuple(milli))


class Fragments:
    """Knows what states of nodes are worth to expected jobs.

    Args:
        expected: How often each type has been asked for, or any numbers in that proportion.
        devices: How many there are of each model.
        passing: Whether jobs leave again, and only come to whole devices. Then a device of a scarce model is missed
            only while others of the model are in use by those that need it: the price counts as often as that, which
            is its square. What :func:`~.device_values.device_values` says is the same wherever they go: it is left out.
    """

    def __init__(self, expected: Mapping[Ask, float], devices: Mapping[str, int], *, passing: bool = False) -> None:
        ranked = sorted(expected.items(), key=lambda one: (*one[0][:4], sorted(one[0].models)))
        total = sum(expected.values()) or 1.0
        self._parts = [(ask, count / total) for ask, count in ranked if count > 0]
        asked = sum(part * ask.milli * ask.gpus for ask, part in self._parts)
        self._prices = _prices(self._parts, asked, devices)
        if passing:
            self._prices = {model: price * price for model, price in self._prices.items()}
        self._values = [0.0]
        if asked and not passing:
            count = sum(devices.values())
            jobs = DEMAND * count * WHOLE_MILLI / asked
            sizes: dict[int, float] = defaultdict(float)
            for ask, part in self._parts:
                sizes[ask.milli] += part * ask.gpus * jobs
            self._values = device_values(sizes, count)
        several = sum(part for ask, part in self._parts if ask.gpus > 1)
        self._whole_weight = WHOLE_WEIGHT / math.sqrt(several) if several else 0.0
        self._draws = _draw(self._parts)
        self._sequences: dict[str, list[list[Ask]]] = {}
        self._several: dict[str, list[tuple[Ask, float]]] = {}
        self._known: dict[Rest, float] = {}

    def price(self, model: str) -> float:
        """Of a thousandth of a device of this model, from 0 to 1."""
        return self._prices.get(model, 0.0)

    def loss(self, rest: Rest, ask: Ask) -> tuple[float, int]:
        """How much less a node is worth when a job has come, at the best of its devices.

        Args:
            rest: Must have what the job asks for.

        Returns:
            The loss, and the place in ``rest.milli`` of the device that the job takes a part of; -1: the last ones.
        """
        price = self.price(rest.model) * ask.milli * ask.gpus
        before = self.worth(rest)
        if ask.gpus != 1:
            return before - self.worth(rest.less(ask)) + price, -1
        best, found = None, -1
        milli = rest.milli
        for device in range(bisect_left(milli, ask.milli), len(milli)):
            if device and milli[device] == milli[device - 1] and found >= 0:
                continue
            worth = self.worth(rest.less(ask, device))
            if best is None or worth > best:
                best, found = worth, device
        if best is None:
            raise ValueError(f"{rest} has no device for {ask}: ask only where it fits")
        return before - best + price, found

    def worth(self, rest: Rest) -> float:
        """In thousandths of devices, weighted as the class says."""
        known = self._known.get(rest)
        if known is None:
            rough = Rest(
                rest.model, rest.cpu - rest.cpu % CPU_STEP, rest.memory - rest.memory % MEMORY_STEP, rest.milli
            )
            known = self._known.get(rough)
            if known is None:
                known = self._worth(rough)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[rough] = self._known[rest] = known
        return known

    def _worth(self, rest: Rest) -> float:
        if rest.model not in self._sequences:
            suited = [[ask for ask in draw if not ask.gpus or _suits(ask, rest.model)] for draw in self._draws]
            self._sequences[rest.model] = suited
            self._several[rest.model] = [one for one in self._parts if one[0].gpus > 1 and _suits(one[0], rest.model)]
        values = sum(self._values[left // STEP_MILLI] for left in rest.milli) if len(self._values) > 1 else 0.0
        whole = sum(part * ask.gpus * ask.milli * holds(rest, ask) for ask, part in self._several[rest.model])
        return self._filled(rest) + VALUES_WEIGHT * values + self._whole_weight * whole

    def _filled(self, rest: Rest) -> float:
        """Thousandths that the sequences use, in the mean."""
        sequences, begin = self._sequences[rest.model], [*rest.milli]
        count, left = len(begin), 0
        if not sequences or not begin or not begin[-1]:
            return 0.0
        for sequence in sequences:
            cpu, memory, milli = rest.cpu, rest.memory, begin.copy()
            for ask_cpu, ask_memory, ask_milli, gpus, _ in sequence:
                if ask_cpu > cpu or ask_memory > memory:
                    continue
                if gpus == 1:
                    at = bisect_left(milli, ask_milli)
                    if at == count:
                        continue
                    rest_milli = milli.pop(at) - ask_milli
                    milli.insert(bisect_left(milli, rest_milli, 0, at), rest_milli)
                elif gpus:
                    if gpus > count or milli[-gpus] < ask_milli:
                        continue
                    milli[-gpus:] = [one - ask_milli for one in milli[-gpus:]]
                    milli.sort()
                cpu -= ask_cpu
                memory -= ask_memory
            left += sum(milli)
        return sum(begin) - left / len(sequences)


def holds(rest: Rest, ask: Ask) -> int:
    """How many jobs of a type that asks for whole devices a node could take, if no others came."""
    found = (len(rest.milli) - bisect_left(rest.milli, ask.milli)) // ask.gpus
    for have, each in ((rest.cpu, ask.cpu), (rest.memory, ask.memory)):
        if each:
            found = min(found, have // each)
    return found


def _suits(ask: Ask, model: str) -> bool:
    return not ask.models or model in ask.models


def _prices(parts: Iterable[tuple[Ask, float]], asked: float, devices: Mapping[str, int]) -> dict[str, float]:
    """By model: the part of its devices that is needed by jobs which cannot go elsewhere, if all devices are asked for.

    It is the largest over all sets of models with this one that a job names, or two jobs together: what is asked of the
    set alone, over what the set has.
    """
    bound: dict[frozenset[str], float] = defaultdict(float)
    for ask, part in parts:
        if ask.models and ask.gpus:
            bound[ask.models] += part * ask.milli * ask.gpus
    total, prices = sum(devices.values()), dict[str, float]()
    named = sorted(bound, key=sorted)[:_MOST_SETS]
    for models in {one | other for one in named for other in named}:
        capacity = sum(devices.get(model, 0) for model in models)
        if capacity:
            need = sum(part for one, part in bound.items() if one <= models) / asked * total
            for model in models:
                prices[model] = max(prices.get(model, 0.0), min(1.0, need / capacity))
    return prices


def _draw(parts: Sequence[tuple[Ask, float]]) -> list[list[Ask]]:
    """Sequences in which each type comes about as often as it is expected to; the same for the same types."""
    chance, found = random.Random(_SEED), []
    for _ in range(SEQUENCES if parts else 0):
        sequence, number, below = list[Ask](), 0, parts[0][1]
        for place in range(LENGTH):
            mark = (place + chance.random()) / LENGTH
            while below < mark and number < len(parts) - 1:
                number += 1
                below += parts[number][1]
            sequence.append(parts[number][0])
        chance.shuffle(sequence)
        found.append(sequence)
    return found
