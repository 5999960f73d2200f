"""``prefect-gpu estimate``: what a run would need, why, and how good estimates have been."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_gpu.cli import common

if TYPE_CHECKING:
    from prefect_gpu.estimation.accuracy import Comparison
    from prefect_gpu.estimation.explanation import Explanation
    from prefect_gpu.estimation.runs import FinishedRun, Known
    from prefect_gpu.storage.row import HistoryRow

_NEIGHBOURS = 3
_NEIGHBOURS_WANTED = 20  # with --runs
_MOST_NAMED = 10  # flows in an error message
_MOST_DEVICES = 1024  # of one node: a row that says more is wrong
_PARAMETER = "--param"


def estimate(
    flow: Annotated[
        str | None, typer.Argument(help="Flow whose next run is estimated. Without it: how good estimates have been.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            _PARAMETER,
            "-p",
            metavar="KEY=VALUE",
            help="A parameter of the run; repeatable. Nested with dots: model.width=64. Those that are not given are "
            "taken from the flow's newest run.",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=0, max=_MOST_DEVICES, help="Devices of each instance.", show_default="as the newest run"),
    ] = None,
    category: Annotated[str | None, typer.Option(help="Kind of model.", show_default="as the newest run")] = None,
    new: Annotated[bool, typer.Option("--new", help="FLOW has not run yet: estimate it from the other flows.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="Show more finished runs, with what was measured.")] = False,
    deadline: Annotated[
        str | None,
        typer.Option(
            help="Ask the pool's worker whether it would promise this deadline, and submit nothing: a length of time "
            "such as 6h, or a date with its time zone. Ends with code 3 if it would refuse."
        ),
    ] = None,
    job_variable: Annotated[
        list[str] | None,
        typer.Option(
            "--job-variable",
            "-jv",
            metavar="KEY=VALUE",
            help="With --deadline: a job variable of the run, such as time_limit=2h; repeatable.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw how good estimates have been into this PNG file.")
    ] = None,
) -> None:
    """Explain what a run is expected to need; or, without FLOW, show how good estimates have been.

    It learns from the history as the worker does, so the answer is the worker's.
    """
    given = _read_parameters(param or [])
    wanted = _read_parameters(job_variable or [], "--job-variable", "time_limit=2h")
    if job_variable and deadline is None:
        common.fail("--job-variable is about a promise: give a --deadline, too.", code=2)
    if flow is None and (given or gpus is not None or category is not None or new or deadline is not None):
        common.fail("Name the flow: prefect-gpu estimate FLOW --param KEY=VALUE.", code=2)
    if flow is not None and not flow.strip():
        common.fail(f"FLOW {flow!r} is no name of a flow: give one, or leave it out to see all flows.", code=2)
    url = common.load_settings().resolved_history_url
    from prefect_gpu.reporting.accuracy import comparisons
    from prefect_gpu.runtime.learning.learner import MOST_ROWS

    rows, _ = common.read_history(url, limit=MOST_ROWS)
    if flow is not None and deadline is not None:
        of_flow = [row for row in rows if row.flow_name == flow]
        if rows and not of_flow and not new and not _has_limit(job_variable):
            _refuse(flow, rows, new=False)
        asked, _ = _submission(flow, given, gpus, category, of_flow)
        variables = {"gpus": asked.gpus, "cpus": asked.cpus, "category": asked.category} | wanted
        from prefect_gpu.cli.deadline_question import answer_for

        answer_for(flow, asked.parameters, variables | {"deadline": deadline}, as_json=as_json)
        return
    if not rows:
        common.fail(
            "No run has finished yet: there is nothing to estimate from. The pool learns from the first run of each "
            "flow that completes; until then, each run is given whole devices for itself."
        )
    compared = comparisons(rows)
    if flow is None:
        if as_json:
            from prefect_gpu.estimation.accuracy import judge

            common.print_json({"accuracy": judge(compared), **({"runs": compared} if runs else {})})
        else:
            from prefect_gpu.cli.accuracy_tables import show_accuracy

            show_accuracy(common.console(), compared, runs=runs)
    else:
        of_flow = [row for row in rows if row.flow_name == flow]
        if bool(of_flow) == new:
            _refuse(flow, rows, new)
        known, taken_over = _submission(flow, given, gpus, category, of_flow)
        compared = [one for one in compared if one.program == flow]
        most = max((_max_gpus(row) for row in of_flow), default=1)
        explained = _explain(rows, known, _NEIGHBOURS_WANTED if runs else _NEIGHBOURS, most)
        if as_json:
            from prefect_gpu.estimation.accuracy import judge

            common.print_json({"explanation": explained, "taken_over": taken_over, "accuracy": judge(compared)[:1]})
        else:
            names = {row.run_id: row.run_name or row.run_id for row in of_flow}
            from prefect_gpu.cli.estimate_tables import show_explanation

            show_explanation(common.console(), explained, taken_over, names, compared, runs=runs)
    if plot is not None:
        _draw(compared, plot, flow, quiet=as_json)


def _read_parameters(
    texts: Sequence[str], option: str = _PARAMETER, like: str = "lr=0.1 or model.width=64"
) -> dict[str, Any]:
    """``["lr=0.1", "model.width=64"]`` as ``{"lr": 0.1, "model": {"width": 64}}``; ends the command on bad syntax."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        path = [part.strip() for part in key.split(".")]
        if not equals or not all(path):
            common.fail(f"{option} {text} is no KEY=VALUE: write {option} {like}.", code=2)
        inside = found
        for part in path[:-1]:
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                common.fail(f"{option} {text}: {part} was given a value of its own before. Leave one out.", code=2)
        if path[-1] in inside:
            common.fail(f"{option} {text}: {key} was given before. Leave one out.", code=2)
        inside[path[-1]] = _read_value(value)
    return found


def _has_limit(variables: Sequence[str] | None) -> bool:
    return any(text.startswith("time_limit=") for text in variables or ())


def _read_value(text: str) -> Any:
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return text


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _refuse(flow: str, rows: Sequence[HistoryRow], new: bool) -> None:
    if new:
        common.fail(f"{flow} has finished runs already: leave out --new.", code=2)
    known = list(dict.fromkeys(row.flow_name for row in rows))  # those that ran last first
    close = difflib.get_close_matches(flow, known, n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    named = ", ".join(known[:_MOST_NAMED]) + (f" and {len(known) - _MOST_NAMED} more" * (len(known) > _MOST_NAMED))
    common.fail(
        f"No run of {flow} has finished yet.{meant} Flows of the history: {named}. "
        f"If {flow} is new, --new estimates it from the other flows.",
        code=2,
    )


def _submission(
    flow: str, given: Mapping[str, Any], gpus: int | None, category: str | None, of_flow: Sequence[HistoryRow]
) -> tuple[Known, dict[str, Any]]:
    """(What is known of the run, the parameters that were taken from the flow's newest run)."""
    from prefect_gpu.estimation.runs import Known

    newest = next((row for row in of_flow if row.outcome == "completed"), of_flow[0] if of_flow else None)
    if newest is None:
        return Known(flow, given, gpus=1 if gpus is None else gpus, category=category), {}
    asked = newest.requested_gpus if gpus is None else gpus
    known = Known(
        flow,
        _merged(newest.parameters, given),
        gpus=1 if asked is None else asked,
        cpus=newest.requested_cpus,
        category=category or newest.category,
        device_kind=newest.device_kind,
    )
    return known, _without(newest.parameters, given)


def _merged(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(usual)
    for name, value in given.items():
        before = found.get(name, {})
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            value = _merged(before, value)
        found[name] = value
    return found


def _without(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The part of some parameters that others leave as it is."""
    found = {}
    for name, value in usual.items():
        if name not in given:
            found[name] = value
        elif isinstance(value, Mapping) and isinstance(given[name], Mapping):
            rest = _without(value, given[name])
            found |= {name: rest} if rest else {}
    return found


def _max_gpus(row: HistoryRow) -> int:
    from prefect_gpu.estimation.submission import MAX_GPUS

    most = row.features.get(MAX_GPUS)
    return most if isinstance(most, int) and 1 < most <= _MOST_DEVICES else 1


def _explain(rows: Sequence[HistoryRow], known: Known, neighbours: int, max_gpus: int) -> Explanation:
    from rich.console import Console

    from prefect_gpu.estimation.estimator import Estimator
    from prefect_gpu.estimation.explanation import explain
    from prefect_gpu.storage.finished import finished_run

    finished: list[FinishedRun] = [run for row in rows if (run := finished_run(row)) is not None]
    with Console(stderr=True).status(f"Learning from {common.plural(len(finished), 'finished run')} …"):
        return explain(Estimator(finished), known, most_neighbours=neighbours, max_gpus=max_gpus)


def _draw(compared: Sequence[Comparison], path: Path, flow: str | None, *, quiet: bool) -> None:
    from prefect_gpu.reporting.accuracy_png import write_accuracy_png

    if not compared:
        common.fail("No run that had been estimated has completed yet: there is nothing to draw.")
    with common.writing(path):
        write_accuracy_png(compared, path, title="Accuracy of the pool's estimates" + (f": {flow}" if flow else ""))
    if not quiet:
        typer.echo(f"Wrote {common.plural(len(compared), 'run')} to {path}.")
