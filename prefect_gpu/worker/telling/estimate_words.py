"""What was estimated of a run, in words: for its log and for its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from types import MappingProxyType
from typing import Any

from prefect_gpu.estimation import runs as r
from prefect_gpu.estimation.online.training import Outlook
from prefect_gpu.estimation.runs import Interval, RunEstimate
from prefect_gpu.phases import within
from prefect_gpu.reporting.accuracy import read_estimate
from prefect_gpu.units import format_bytes, format_seconds
from prefect_gpu.worker.telling.expectations import time_of_day


def _share(part: float) -> str:
    return f"{part:.0%}"


def _bandwidth(rate: float) -> str:
    return f"{format_bytes(rate)}/s"


def _step(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else format_seconds(seconds)


_ROWS: dict[str, tuple[str, Callable[[float], str]]] = {
    r.LAUNCHING_S: ("preparing", format_seconds),
    r.TRAINING_S: ("training", format_seconds),
    r.STEP_S: ("one step", _step),
    r.SAVING_S: ("saving", format_seconds),
    r.MEMORY_BYTES: ("peak memory", format_bytes),
    r.UTILISATION: ("use of the device", _share),
    r.CPU_CORES: ("CPU cores", "{:.2g}".format),
    r.NETWORK_BYTES_PER_S: ("network", _bandwidth),
}
_MOST_SPEEDS = 8
_IN_THE_LOG = {r.TRAINING_S: "training", r.MEMORY_BYTES: "memory"}


def estimate_of(kept: Mapping[str, Any], newest: RunEstimate) -> RunEstimate:
    """What was estimated of a run before it was placed.

    Args:
        kept: As its record keeps it; a worker that adopts a run knows it from there alone.
        newest: What is estimated of it now. Of the record's estimate only the warnings are taken from here; it stands
            for the whole where the record has none.
    """
    targets = read_estimate(kept)
    if not targets:
        return newest
    basis, from_runs = str(kept.get("basis", "finished runs")), kept.get("from_runs")
    return RunEstimate(targets, from_runs if isinstance(from_runs, int) else 0, basis, newest.coverage, newest.warnings)


def launch_line(estimate: RunEstimate) -> str | None:
    """The line in a run's log when it is launched; None if neither its time nor its memory can be estimated.

    Example:
        >>> launch_line(RunEstimate({"training_s": Interval(70.0, 50.0, 95.0)}, 12, "12 finished runs of train"))
        'Expected: training 70 s (50 s to 1 min 35 s); from 12 finished runs of train'
    """
    said = []
    for target, name in _IN_THE_LOG.items():
        if target in estimate.targets:
            value, low, high = _written(target, estimate.targets[target])
            said.append(f"{name} {value} ({low} to {high})")
    return f"Expected: {', '.join(said)}; from {estimate.basis}" if said else None


def drift_words(factor: float, basis: str) -> str:
    """What is said of a run whose steps do not take as long as was expected.

    Args:
        factor: Measured seconds per step as a multiple of the expected ones.
        basis: What the estimate rests on.
    """
    return f"It takes {factor:.2g} times as long per step as expected from {basis}"


def to_go(outlook: Outlook, now: float, zone: tzinfo | None = None) -> str:
    """How long the training goes on, and until when; ``now`` in Unix seconds. Empty if it is at its end.

    Example:
        >>> from datetime import timezone
        >>> left = Interval(30.0, 28.0, 33.0)
        >>> to_go(Outlook(left, left, left), now=0.0, zone=timezone.utc)
        'about 30 s to go, until 00:00:30'
    """
    left = outlook.remaining_s.median
    return f"about {format_seconds(left)} to go, until {time_of_day(now + left, now, zone)}" if left > 0 else ""


def estimate_markdown(
    estimate: RunEstimate,
    *,
    now: float,
    outlook: Outlook | None = None,
    drift: float | None = None,
    measured: Mapping[str, float] | None = None,
    speeds: Sequence[float] = (),
    own: Mapping[int, float] = MappingProxyType({}),
    apart: Sequence[float] = (),
    own_apart: Mapping[int, float] = MappingProxyType({}),
    zone: tzinfo | None = None,
) -> str:
    """What a run's page says of its estimate; empty if nothing was estimated.

    Args:
        estimate: From :func:`estimate_of`.
        now: Unix seconds.
        outlook: What is expected of the rest of its training, while it trains.
        drift: By which factor its steps take longer than expected, if that is no chance.
        measured: By target, what it needed; None: it is not over yet.
        speeds: Of an elastic run, the steps per second that are expected on 1, 2, 3 … devices.
        own: Its own steps per second, by the number of devices on which it was measured.
        apart, own_apart: Likewise on several nodes, if it may be there.
        zone: Whose time is meant; None: that of this machine.
    """
    shown = _speeds(speeds, own)
    if any(apart):
        shown = "\n".join((shown, _speeds(apart, own_apart, "on several nodes")))
    if not estimate.targets:
        return shown
    over = measured is not None
    paragraphs = [f"Estimated from {estimate.basis}."]
    if outlook is not None and not over:
        paragraphs.append(_end(outlook, estimate.targets.get(r.SAVING_S, Interval(0.0, 0.0, 0.0)), now, zone))
    if drift is not None:
        paragraphs.append(f"**{drift_words(drift, estimate.basis)}.**")
    paragraphs.append(_table(estimate, measured))
    if not over and shown:
        paragraphs.append(shown.rstrip())
    if estimate.warnings:
        paragraphs.append("\n".join(f"- {warning}" for warning in estimate.warnings))
    return "\n\n".join(paragraphs) + "\n"


def _speeds(speeds: Sequence[float], own: Mapping[int, float], where: str = "") -> str:
    """Steps per second of an elastic run by devices, those that it has measured itself in bold; empty: unknown."""
    if not any(speeds):
        return ""
    said = [
        f"**{rate:.3g}** on {count} (its own)" if count in own else f"{rate:.3g} on {count}"
        for count, rate in enumerate(speeds[:_MOST_SPEEDS], 1)
    ]
    more = " …" if len(speeds) > _MOST_SPEEDS else ""
    return f"Steps per second by number of devices{where and ' ' + where}: {', '.join(said)}{more}.\n"


def _end(outlook: Outlook, saving: Interval, now: float, zone: tzinfo | None) -> str:
    left = outlook.remaining_s
    end, soonest, latest = (
        time_of_day(now + part, now, zone)
        for part in (left.median + saving.median, left.low + saving.low, left.high + saving.high)
    )
    step = f", at {_step(outlook.step_s.median)} per step" if outlook.step_s.median > 0 else ""
    return f"Now expected to end at **{end}** (between {soonest} and {latest}){step}."


def _table(estimate: RunEstimate, measured: Mapping[str, float] | None) -> str:
    rows = [["", "expected", f"{estimate.coverage:.0%} interval"], ["---", "---:", "---:"]]
    for target, (name, write) in _ROWS.items():
        if target in estimate.targets:
            value, low, high = _written(target, estimate.targets[target])
            rows.append([within(name), value, f"{low} to {high}"])
            if measured is not None:
                rows[-1].append(write(measured[target]) if target in measured else "–")
    if measured is not None:
        rows[0].append("measured")
        rows[1].append("---:")
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _written(target: str, interval: Interval) -> tuple[str, str, str]:
    write = _ROWS[target][1]
    return write(interval.median), write(interval.low), write(interval.high)
