"""What ``prefect-gpu status`` draws, from what the page's worker tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from prefect_gpu.cli.common import plural, short_id
from prefect_gpu.phases import PHASES
from prefect_gpu.reporting.sparkline import sparkline
from prefect_gpu.reporting.tables import FIGURES, WHOLE, WORDS, each, plain_table
from prefect_gpu.runtime.activity_log import NOT_STARTED
from prefect_gpu.units import format_bytes, format_seconds

_QUEUE_SHOWN = 12
_FINISHED_SHOWN = 5
_BOUNDLESS = 10_000
_TITLE: dict[str, Any] = {"title_justify": "left", "title_style": "bold"}
_CURVES = (16, 12, 8, 4, 0)  # characters of a curve of losses


class _Fitted:
    """A table whose curves are as long as there is room for beside all else.

    Args:
        make: Makes it with curves of so many characters at most.
    """

    def __init__(self, make: Callable[[int], Table]) -> None:
        self._make = make

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        boundless = options.update_width(_BOUNDLESS)
        tables = map(self._make, _CURVES)
        yield next(
            (one for one in tables if Measurement.get(console, boundless, one).maximum <= options.max_width),
            self._make(_CURVES[-1]),
        )


def screen_of(told: dict[str, Any]) -> RenderableType:
    """One pool.

    Args:
        told: See :func:`prefect_gpu.runtime.overview.overview`; with ``pool``, ``ahead_s``, ``unwell`` and ``url``.
    """
    now, ahead_s = told["now"], told.get("ahead_s", 0.0)
    active = [run for run in told["runs"] if run["outcome"] is None]
    finished = (run for run in told["runs"] if run["outcome"] not in (None, NOT_STARTED))
    over = sorted(finished, key=lambda run: -run["ended"])
    nodes = ", ".join(_node_words(node) for node in told["nodes"]) or "no node"
    head = Text.assemble((f"Pool {told['pool']}", "bold"), f" on {nodes}, profile {told['profile']}  ")
    if any((promises := told.get("promises") or {}).values()):
        head.append(", ".join(f"{count} {how}" for how, count in promises.items()) + " promises  ", "bright_black")
    head.append(told["url"], "underline")
    if told["draining"]:
        head.append("  draining: no run is started any more", "yellow")
    for trouble in told.get("unwell", ()):
        head.append(f"\nNot well: {trouble}", "yellow")
    parts: list[RenderableType] = [head, _Fitted(partial(_devices, told, active, now)), _queue(told, now, ahead_s)]
    if over:
        parts += [_finished(over, ahead_s)]
    return Group(*parts)


def _node_words(node: dict[str, Any]) -> str:
    return str(node["id"]) if node["state"] == "up" else f"{node['id']} ({node['state']})"


def _devices(told: dict[str, Any], active: list[dict[str, Any]], now: float, curve: int) -> Table:
    table = plain_table(
        *each(WORDS, "Device", "Run", "Phase"),
        ("Done", {"width": 10, "no_wrap": True}),
        *each(FIGURES, "To go", "Share", "Cores"),
        ("Loss", WHOLE),
        ("Device idle", FIGURES),
        leave_out=("Device idle", "Cores", "Share", "Done", "Loss", "To go"),
        title="\nDevices",
        **_TITLE,
    )
    several = len(told["nodes"]) > 1
    instances = [
        (run, rank, part["node"], part["devices"])
        for run in _sorted(active)
        for rank, part in enumerate(run["parts"] or [run])
    ]
    for node in told["nodes"]:
        mine = [one for one in instances if one[2] == node["id"] or not several]
        if several:
            rack = f", rack {node['rack']}" if node["rack"] else ""
            table.add_row(Text(_node_words(node) + rack, "underline"))
        for device in told["devices"] if mine or node["state"] != "gone" else ():
            if device["node"] == node["id"]:
                here = [(run, rank) for run, rank, _, held in mine if device["id"] in held]
                _add_device(table, device, here, now, curve, below_its_node=several)
        there = {device["id"] for device in told["devices"] if device["node"] == node["id"]}
        for id_ in dict.fromkeys(id_ for *_, held in mine for id_ in held if id_ not in there):  # adopted, say
            name = Text.assemble((short_id(id_), "bold"), "\n", ("is not there any more", "yellow"))
            _add_runs(table, name, [(run, rank) for run, rank, _, held in mine if id_ in held], now, curve)
        without = [(run, rank) for run, rank, _, held in mine if not held]
        _add_runs(table, Text("no device", "bold"), without, now, curve)
    return table


def _add_runs(table: Table, name: Text, here: list[tuple[dict[str, Any], int]], now: float, curve: int) -> None:
    """The rows of runs that are on no device that is there: the first one has the name of where they are."""
    for position, (run, rank) in enumerate(here):
        table.add_row(name if position == 0 else "", *_cells(run, rank, now, curve), "")


def _add_device(
    table: Table,
    device: dict[str, Any],
    here: list[tuple[dict[str, Any], int]],
    now: float,
    curve: int,
    *,
    below_its_node: bool,
) -> None:
    """The rows of a device: one for each run there, of which it has the instance with that number."""
    # What a Swarm's virtual devices are called begins with the node.
    id_ = device["id"].removeprefix(f"{device['node']}/") if below_its_node else device["id"]
    name = Text(short_id(id_), "bold")
    if "virtual" not in name.plain:
        name.append(" virtual" if device["virtual"] else f" {device['kind']}", "bright_black")
    name.append(f" {format_bytes(device['memory_bytes'])}", "bright_black")
    if device.get("cordoned"):
        name.append(f"\nout of service: {device['cordoned']}", "red")
    elif device.get("leaves"):
        at, why = device["leaves"]
        name.append(f"\nleaves service in {format_seconds(max(0.0, at - now))}{f': {why}' if why else ''}", "yellow")
    gaps = device["gaps"]
    idle = f"{_short(device['idle_s'] / gaps)} × {gaps}" if gaps else "–"
    if not here:
        table.add_row(name, Text("nobody", "bright_black"), "", "", "", "", "", "", idle)
    for position, (run, rank) in enumerate(here):
        first = position == 0
        table.add_row(name if first else "", *_cells(run, rank, now, curve), idle if first else "")


def _sorted(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who trains comes first."""
    first = ["training", "gate", "preparing", "launching", "saving", "ending"]
    return sorted(runs, key=lambda run: (first.index(run["phase"]) if run["phase"] in first else 9, run["n"]))


def _cells(run: dict[str, Any], rank: int, now: float, curve: int) -> list[RenderableType]:
    phase = run["phase"] or "ending"
    words = Text(PHASES[phase].lower, PHASES[phase].style) if phase in PHASES else Text(phase)
    if run["gated"] and run["behind"]:
        words.append(f" behind {run['behind']}", "bright_black")
    if run["finishing"]:
        words.append(" (ends early)", "bright_black")
    step, steps = run["step"], run["steps"]
    done: RenderableType = ""
    if step is not None and steps:
        done = ProgressBar(total=steps, completed=min(step, steps), width=10)
    elif step is not None:
        done = f"step {step}"
    end = run.get("expected_end")
    to_go = format_seconds(end - now) if end is not None and end > now and phase == "training" else ""
    weight = run["weights"][-1][1] if run["weights"] else 1.0
    share = Text("paused", "yellow") if weight == 0 else Text(f"{weight:.0%}", "yellow" if weight < 1 else "")
    losses = [loss for _, loss in run.get("losses", ()) if loss is not None]
    line = sparkline(losses, curve) if losses and curve else ""
    loss = f"{line} {run['loss']:.4g}".lstrip() if run["loss"] is not None else line
    cores = str(int(run["cores"][-1][1])) if run["cores"] else ""
    name = Text(run["name"])
    if run["parts"]:
        name.append(f" {run['parts'][rank]['role']} {rank}", "bright_black")
    return [name, words, done, to_go, share, cores, Text(loss)]


def _queue(told: dict[str, Any], now: float, ahead_s: float) -> RenderableType:
    if not told["queued"]:
        return Text("\nNo run waits.", "bright_black")
    columns = [("#", FIGURES), *each(WORDS, "Run", "Why it waits"), ("Expected start", FIGURES)]
    title = f"\nQueue: {plural(told['queued'], 'run')}"
    table = plain_table(*columns, leave_out=("Expected start",), title=title, **_TITLE)
    for position, run in enumerate(told["queue"][:_QUEUE_SHOWN], start=1):
        start = run["expected_start"]
        reason = run["reason"] or "it has just arrived"
        due = f"due {_clock(run['due'] - ahead_s)}" if run["due"] and run["due"] > now else "unknown"
        when = due if start is None else _clock(start - ahead_s)
        if start is not None and start > now:
            when += f", in {format_seconds(start - now)}"
        table.add_row(str(position), Text(run["name"]), Text(reason[0].upper() + reason[1:]), when)
    if told["queued"] > _QUEUE_SHOWN:
        table.add_row("", Text(f"and {told['queued'] - _QUEUE_SHOWN} more", "bright_black"), "", "")
    return table


def _finished(over: list[dict[str, Any]], ahead_s: float) -> Table:
    columns = each(FIGURES, PHASES["training"].past.capitalize(), "Device idle before", "Best loss")
    title = f"\nFinished: {plural(len(over), 'run')}"
    table = plain_table(
        ("Ended", WHOLE),
        ("Run", WORDS),
        ("Outcome", WHOLE),
        *columns,
        leave_out=("Device idle before", PHASES["training"].past.capitalize(), "Best loss", "Ended"),
        title=title,
        **_TITLE,
    )
    for run in over[:_FINISHED_SHOWN]:
        good = run["outcome"] == "completed"
        trained = [(end or run["ended"]) - start for phase, start, end in run["spans"] if phase == "training"]
        idle, best = run["idle_before_s"], run["best_loss"]
        table.add_row(
            _clock(run["ended"] - ahead_s),
            Text(run["name"]),
            Text(run["outcome"], "" if good else "red"),
            _short(sum(trained)) if trained else "–",
            "–" if idle is None else _short(idle),
            "–" if best is None else f"{best:.4g}",
        )
    return table


def _clock(moment: float) -> str:
    at, now = datetime.fromtimestamp(moment), datetime.now()
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else format_seconds(seconds)
