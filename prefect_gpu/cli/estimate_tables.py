"""Tables that explain an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from prefect_gpu.cli import common
from prefect_gpu.cli.accuracy_tables import amount, heading, say, show_runs, table_of
from prefect_gpu.estimation import runs as r
from prefect_gpu.estimation.accuracy import TOTAL_S, Accuracy, Comparison, Score, judge
from prefect_gpu.phases import named
from prefect_gpu.reporting import accuracy as figures

if TYPE_CHECKING:
    from rich.console import Console

    from prefect_gpu.estimation.explanation import Deduced, Explanation, Neighbour, OnKind
    from prefect_gpu.estimation.throughput.scaling_curve import Speed

_LABELS = {
    r.LAUNCHING_S: "preparing",
    r.TRAINING_S: "training",
    r.STEP_S: "  one step",
    r.SAVING_S: "saving",
    r.MEMORY_BYTES: "Memory, peak",
    r.UTILISATION: "Device in use",
    r.UTILISATION_STD: "  its deviation",
    r.CPU_CORES: "Cores in use",
    r.NETWORK_BYTES_PER_S: "Network",
}
_PHASES = (r.LAUNCHING_S, r.TRAINING_S, r.SAVING_S)
_MOST_DIFFERING = 3
_SHOWN_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)  # of devices; more where runs were on more


def show_explanation(
    screen: Console,
    explained: Explanation,
    taken_over: Mapping[str, Any],
    names: Mapping[str, str],
    compared: Sequence[Comparison],
    *,
    runs: bool = False,
) -> None:
    """An estimate and where it comes from.

    Args:
        taken_over: The parameters that the user did not give.
        names: By run id, what people know a run by.
        compared: Runs of the same flow that had been estimated.
        runs: Whether those runs are shown one by one.
    """
    known, found = explained.known, explained.estimate
    say(screen, f"A run of {known.program} on {_devices(known)}", style="bold")
    say(screen, f"From {found.basis}." if found.targets else f"Nothing can be estimated: {found.basis}.")
    if taken_over:
        say(screen, f"As in the newest run: {', '.join(_flat(taken_over))}.", style="dim")
    for warning in found.warnings:
        say(screen, f"! {warning}", style="yellow")
    if found.targets:
        screen.print()
        screen.print(_intervals(found))
    if r.TRAINING_S not in found.targets and r.STEP_S in found.targets:
        say(
            screen,
            "The training time is unknown, as the number of steps is unknown: give the parameters that it depends on.",
        )
    if explained.deduced:
        heading(screen, "What it will probably declare when it starts, judging by its parameters")
        screen.print(_deduced(explained.deduced))
    _show_matters(screen, explained)
    if explained.speeds:
        heading(screen, "Its speed on other numbers of devices, as an elastic run's is planned")
        screen.print(_speeds(explained.speeds))
    if explained.kinds:
        heading(screen, "On other kinds of devices")
        screen.print(_kinds(explained.kinds, found))
    if explained.neighbours:
        heading(screen, "Finished runs most like it")
        screen.print(_neighbours(explained.neighbours, names))
    if explained.regressors:
        chosen = sorted(set(explained.regressors.values()))
        say(screen, f"Learned across flows with {', '.join(chosen)}, which predicted left-out flows best.")
    _show_how_good(screen, explained, compared)
    if runs and compared:
        show_runs(screen, compared, names)


def _intervals(found: r.RunEstimate) -> Table:
    table = table_of("", "Expected", f"{found.coverage:.0%} lie between", "and")
    for target, label in _LABELS.items():
        one = found.targets.get(target)
        if one is not None:
            table.add_row(named(label), *(amount(target, value) for value in (one.median, one.low, one.high)))
        if target == r.SAVING_S and r.TRAINING_S in found.targets:
            total = sum(found.targets[phase].median for phase in _PHASES if phase in found.targets)
            table.add_row("Start to end", amount(TOTAL_S, total), "", "", style="bold")
    return table


def _deduced(deduced: Sequence[Deduced]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for one in deduced:
        value = "unknown: a parameter is missing or odd" if one.value is None else _value(one.value)
        rule = "" if one.rule in (one.name, value) else f"= {one.rule}"
        grid.add_row(one.name, value, Text(rule), f"as in {common.plural(one.runs, 'run')}")
    return grid


def _show_matters(screen: Console, explained: Explanation) -> None:
    shown = [
        target for target in (r.TRAINING_S, r.STEP_S, r.LAUNCHING_S, r.MEMORY_BYTES) if explained.matters.get(target)
    ]
    if not shown:
        return
    heading(screen, "What matters, judging by the finished runs")
    grid = Table.grid(padding=(0, 2))
    for target in shown:
        shares = explained.matters[target].items()
        words = ", ".join(f"{name} {share:.0%}" for name, share in list(shares)[:6] if share >= 0.01)
        grid.add_row(named(_LABELS[target]).strip().capitalize(), Text(words))
    screen.print(grid)


def _speeds(speeds: Sequence[Speed]) -> Table:
    table = table_of("Devices", "Steps per second", "Times one", "Known from")
    table.columns[-1].justify = "left"
    first = speeds[0].steps_per_s
    shown = [one for one in speeds if one.runs or one.gpus in _SHOWN_COUNTS or one is speeds[-1]]
    for one in shown:
        times = f"{one.steps_per_s / first:.2f}" if first > 0 else "–"
        source = f"{common.plural(one.runs, 'run')} on this count" if one.runs else "other counts, cautiously"
        table.add_row(str(one.gpus), f"{one.steps_per_s:.3g}", times, source)
    return table


def _kinds(kinds: Sequence[OnKind], found: r.RunEstimate) -> Table:
    table = table_of("", "Expected", f"{found.coverage:.0%} lie between", "and", "Known from")
    table.columns[-1].justify = "left"
    target = r.TRAINING_S if r.TRAINING_S in found.targets else r.STEP_S
    for one in sorted(kinds, key=lambda one: one.seconds.median):
        source = f"{common.plural(one.runs, 'run')} there" if one.runs else "what other flows gain or lose there"
        figures_of = (one.seconds.median, one.seconds.low, one.seconds.high)
        table.add_row(one.kind, *(amount(target, value) for value in figures_of), source)
    return table


def _neighbours(neighbours: Sequence[Neighbour], names: Mapping[str, str]) -> Table:
    table = table_of("Run", "Distance", named("training"), "Memory", "Its differences")
    table.columns[-1].justify = "left"
    for one in neighbours:
        differing = list(one.differing.items())
        words = ", ".join(f"{name}={_value(its)}" for name, (its, _) in differing[:_MOST_DIFFERING])
        words += f" and {len(differing) - _MOST_DIFFERING} more" if len(differing) > _MOST_DIFFERING else ""
        table.add_row(
            Text(names.get(one.run_id, one.run_id), no_wrap=True, overflow="ellipsis"),
            f"{one.distance:.2f}",
            _measured(one.measured, r.TRAINING_S),
            _measured(one.measured, r.MEMORY_BYTES) + ("*" if one.out_of_memory else ""),
            Text(words or "none that matters"),
        )
    if any(one.out_of_memory for one in neighbours):
        table.caption = "* ran out of memory: its need is assumed"
    return table


def _show_how_good(screen: Console, explained: Explanation, compared: Sequence[Comparison]) -> None:
    past: Accuracy | None = next(iter(judge(compared)), None)
    groups: list[tuple[str, Mapping[str, Score]]] = [("its runs, each from the others", explained.left_out)]
    if past is not None:
        groups.append(("before they trained", past.scores))
        if past.runs > figures.WINDOW:
            groups.append((f"  newest {figures.WINDOW}", past.newest))
    groups = [(name, scores) for name, scores in groups if r.TRAINING_S in scores or r.MEMORY_BYTES in scores]
    if not groups:
        return
    heading(screen, "Accuracy of such estimates (median error)")
    table = table_of("", "Runs", named("training"), "Within", "Memory", "Within")
    for name, scores in groups:
        training, memory = scores.get(r.TRAINING_S), scores.get(r.MEMORY_BYTES)
        count = max(one.runs for one in (training, memory) if one is not None)
        table.add_row(
            name,
            str(count),
            *(show(one) for one in (training, memory) for show in (figures.error_of, figures.within)),
        )
    screen.print(table)


def _measured(measured: Mapping[str, float], target: str) -> str:
    return amount(target, measured[target]) if target in measured else "–"


def _devices(known: r.Known) -> str:
    kind = "virtual device" if known.device_kind == "virtual" else (known.device_kind or "device")
    return f"{known.gpus:g} × {kind}" if known.gpus != 1 else f"1 {kind}"


def _flat(parameters: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}={_value(value)}")
    return found


def _value(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
    return text if len(text) <= 24 else text[:23] + "…"
