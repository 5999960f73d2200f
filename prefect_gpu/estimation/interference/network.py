"""What a history says of programs on a network: what they did to each other, and how each communicates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from prefect_gpu.estimation.interference.sensitivity import Party, Sensitivity
from prefect_gpu.scheduling.interference.sensitivity import Key, Traffic

_BUSIEST = 0.9  # a link that was busier than this on average was not used by one run alone


def remembered(measured: Iterable[tuple[Key, Key, float]]) -> tuple[tuple[Key, Key, float], ...]:
    """Each pair that was ever measured, and one slowdown for it.

    Several measurements of a pair are weighed together, and with those of its two programs elsewhere
    (:class:`~prefect_gpu.estimation.interference.sensitivity.Sensitivity`), so that one odd run does not decide.

    Args:
        measured: (who was measured, the only other one on its nodes, its speed alone ÷ beside that one), oldest first.

    Returns:
        The same triples, each pair once, in order.
    """
    known = Sensitivity()
    pairs = set()
    for own, other, slowdown in measured:
        known.observe(_party(own), [_party(other)], 1 / slowdown)
        pairs.add((own, other))
    return tuple((own, other, 1 / known.predict(_party(own), _party(other)).median) for own, other in sorted(pairs))


def _party(key: Key) -> Party:
    return Party(key.model, (key.gpus, key.nodes))


@dataclass(frozen=True)
class Communication:
    """What one finished run shows of how its program communicates.

    Attributes:
        key: Its program, its GPUs in all, and its nodes.
        step_s: Mean seconds of a step; None: unknown.
        bytes_per_s: What its first instance received and sent, on average; None: unknown.
        batch_size: As it declared it: only steps of one size are compared.
        comm_to_comp: Seconds of communication per second of computation, if its user has declared that.
    """

    key: Key
    step_s: float | None = None
    bytes_per_s: float | None = None
    batch_size: float | None = None
    comm_to_comp: float | None = None


def traffic_of(runs: Sequence[Communication], link_bytes_per_s: float | None = None) -> tuple[tuple[str, Traffic], ...]:
    """How each program communicates, as far as it was measured, by the program's name.

    Its bandwidth is the median of its runs on several nodes, half of what passes the first instance, which sends as
    much as it receives. Its communication per computation is, in this order:

    - what a user has declared, the newest;
    - how much longer a step takes on several nodes than on one, with as many GPUs and the same batch. Communication
      within a node counts as computation there, so that it is rather too low;
    - what its bandwidth keeps the link busy for. That is lower still, as no link is used at its full rate.

    Of a program without either, or without a bandwidth, nothing is said.

    Args:
        runs: The newest first.
        link_bytes_per_s: Rate of a node's link; None: unknown.
    """
    of_program: dict[str, list[Communication]] = {}
    for run in runs:
        of_program.setdefault(run.key.model, []).append(run)
    found = []
    for program, own in sorted(of_program.items()):
        spread = [run.bytes_per_s for run in own if run.key.nodes > 1 and run.bytes_per_s is not None]
        if not spread:
            continue
        bytes_per_s = median(spread) / 2
        declared = next((run.comm_to_comp for run in own if run.comm_to_comp is not None), None)
        part = declared if declared is not None else _by_steps(own)
        if part is None and link_bytes_per_s:
            busy = min(_BUSIEST, bytes_per_s / link_bytes_per_s)
            part = busy / (1 - busy)
        if part is not None:
            found.append((program, Traffic(bytes_per_s, part)))
    return tuple(found)


def _by_steps(runs: Sequence[Communication]) -> float | None:
    """How much longer steps take on several nodes, relative to one; None: there are not both."""
    steps: dict[tuple[int, float | None], tuple[list[float], list[float]]] = {}
    for run in runs:
        if run.step_s is not None and run.step_s > 0:
            steps.setdefault((run.key.gpus, run.batch_size), ([], []))[run.key.nodes > 1].append(run.step_s)
    longer = [median(spread) / median(one) - 1 for one, spread in steps.values() if one and spread]
    return max(0.0, median(longer)) if longer else None
