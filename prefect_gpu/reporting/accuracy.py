"""How good the pool's estimates have been: from the history, as figures for people and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from prefect_gpu.estimation.accuracy import (
    JUDGED,
    TOTAL_S,
    WINDOW,
    Accuracy,
    Comparison,
    Score,
    judge,
    series,
    window_for,
)
from prefect_gpu.estimation.runs import MEMORY_BYTES, TARGETS, TRAINING_S, Interval
from prefect_gpu.reporting.sparkline import sparkline
from prefect_gpu.storage.finished import finished_run
from prefect_gpu.storage.row import HistoryRow

COVERAGE = 0.9  # how often the intervals are meant to hold
NAMES = {TRAINING_S: "training time", TOTAL_S: "start to end", MEMORY_BYTES: "peak memory"}
_MOST_FLOWS = 50  # in a table


def comparisons(rows: Iterable[HistoryRow]) -> list[Comparison]:
    """What had been estimated of completed runs beside what they needed; rows without an estimate are left out."""
    found = []
    for row in rows:
        estimated = read_estimate(row.estimate)
        run = finished_run(row) if estimated and row.outcome == "completed" else None
        if run is not None:
            found.append(Comparison(run.run_id, row.flow_name, row.ended_at, estimated, run.measured))
    return found


def read_estimate(kept: Any) -> dict[str, Interval]:
    """The intervals of an estimate as the history keeps it; what cannot be read is left out."""
    found = {}
    for target in TARGETS:
        numbers = kept.get(target) if isinstance(kept, dict) else None
        if isinstance(numbers, list | tuple) and len(numbers) == 3 and all(map(_is_number, numbers)):
            found[target] = Interval(*map(float, numbers))
    return found


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def accuracy_markdown(compared: Sequence[Comparison], coverage: float = COVERAGE) -> str:
    """How good estimates have been, as the text of an artifact.

    Args:
        compared: From :func:`comparisons`.
        coverage: How often the intervals are meant to hold, 0 to 1.
    """
    judged = judge(compared)
    if not judged:
        return "No run that had been estimated has completed yet.\n"
    overall, flows = judged[0], judged[1:]
    window = window_for(len(compared))
    lines = [f"# Estimates of {_runs(overall.runs)}", "", *_summary(overall, coverage), ""]
    for target in (TRAINING_S, MEMORY_BYTES):
        medians = series(compared, target, window).median
        if len(medians) > 1:
            first = medians[min(window, len(medians)) - 1]
            lines += [
                f"{NAMES[target].capitalize()}: median error of {window} runs at a time, {percent(first)} of the "
                f"first and {percent(medians[-1])} of the newest:  ",
                f"`{sparkline(medians.tolist())}`",
                "",
            ]
    lines += [
        "| flow | runs | training time | newest | within | start to end | peak memory | within |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += ["| " + " | ".join([_cell(one.program), *cells(one)]) + " |" for one in flows[:_MOST_FLOWS]]
    if len(flows) > _MOST_FLOWS:
        lines += ["", f"{len(flows) - _MOST_FLOWS} flows with fewer runs are not shown."]
    lines += [
        "",
        f"Medians of the relative errors of the estimates made before the runs trained; *newest*: of the newest "
        f"{WINDOW} runs; *within*: part of the runs whose value was in the estimated interval "
        f"(the aim is {coverage:.0%}).",
    ]
    return "\n".join(lines) + "\n"


def cells(one: Accuracy) -> list[str]:
    """A flow's figures for people: runs, training time (error, of the newest, within), end, memory (error, within)."""
    training, total, memory = (one.scores.get(target) for target in JUDGED)
    newest = one.newest.get(TRAINING_S)
    return [
        str(one.runs), error_of(training), error_of(newest), within(training),
        error_of(total), error_of(memory), within(memory),
    ]  # fmt: skip


def error_of(found: Score | None) -> str:
    """A median error for people; a dash if there is none."""
    return "–" if found is None else percent(found.error)


def within(found: Score | None) -> str:
    """A share within intervals for people; a dash if there is none."""
    return "–" if found is None or found.within is None else f"{found.within:.0%}"


def percent(part: float) -> str:
    """A relative error for people: ``0.4 %``, ``12 %``, ``×31`` of what is no small part any more."""
    if part >= 9.995:
        return f"×{part + 1:.3g}"
    return f"{part:.0%}" if part >= 0.0995 else f"{part:.1%}"


def _summary(overall: Accuracy, coverage: float) -> list[str]:
    found = []
    for target in (TRAINING_S, MEMORY_BYTES):
        its = overall.scores.get(target)
        if its is not None:
            found.append(
                f"The {NAMES[target]} was off by {percent(its.error)} (median of {_runs(its.runs)}); "
                f"{within(its)} lay within their interval, {coverage:.0%} are meant to.  "
            )
    return found


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("\n", " ")
