"""The pages in ``docs/reference``, made from the code: ``python docs/build_reference.py``.

``--check`` changes nothing and ends with code 1 if a page is not what the code says. Plain Markdown, no framework:
what a page says is what the docstrings say.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reference_markdown import cell, document, entries, fields_table, page, prose

os.environ["COLUMNS"] = "100"
os.environ["TERM"] = "dumb"

FOLDER = Path(__file__).resolve().parent / "reference"


def settings_page() -> str:
    """Settings of the worker."""
    from prefect_gpu.settings import GpuSettings

    rows = ["| setting | environment variable | default | |", "|---|---|---|---|"]
    for name, item in GpuSettings.model_fields.items():
        default = item.get_default(call_default_factory=True)
        shown = "" if default in (None, []) else f"`{str(default).lower() if default in (True, False) else default}`"
        rows.append(
            f"| `{name}` | `PREFECT_INTEGRATIONS_GPU_{name.upper()}` | {shown} | {cell(item.description or '')} |"
        )
    return page(
        "Settings",
        "These are the settings of a worker. Each has a default that works on one machine. They are settings of "
        "Prefect's own kind, so each can be given as an environment variable, with `prefect config set NAME=VALUE` "
        "in a profile, or in `prefect.toml` under `[integrations.gpu]` (in `pyproject.toml` under "
        "`[tool.prefect.integrations.gpu]`). The worker reads them when it starts.",
        "\n".join(rows),
    )


def job_variables_page() -> str:
    """Job variables, from the pool's own schema."""
    from prefect_gpu.worker import GpuWorker

    properties = GpuWorker.get_default_base_job_template()["variables"]["properties"]
    rows = ["| variable | type | default | |", "|---|---|---|---|"]
    for name, item in properties.items():
        kinds = [part.get("type", "") for part in item.get("anyOf", [item])]
        choices = next((part["enum"] for part in [*item.get("anyOf", []), item] if "enum" in part), None)
        kind = " or ".join(kind for kind in kinds if kind != "null") or "any"
        if choices:
            kind = ", ".join(f"`{choice}`" for choice in choices)
        default = "" if item.get("default") is None else f"`{json.dumps(item['default'])}`"
        rows.append(
            f"| `{name}` | {cell(kind)} | {default} | {cell(item.get('description') or item.get('title') or '')} |"
        )
    return page(
        "Job variables",
        "Job variables say what a run asks for: in the form in Prefect's UI, as `job_variables` of a deployment or of "
        "a single run, or as arguments of [`@gpu`](decorator.md). The pool's own defaults can be changed in its base "
        "job template.",
        "\n".join(rows),
        "Sizes are numbers with a unit: `6GiB` and `6G` are binary, `6GB` is decimal, `500MB`, `1.5TiB` …",
    )


def decorator_page() -> str:
    """The decorator, the flow that it makes, the search that such a flow is for, and watching its runs."""
    from prefect_gpu.decorators import GpuFlow, gpu
    from prefect_gpu.sweeps import sweep
    from prefect_gpu.watching import Watched, watch

    members = ("__call__", "submit", "start", "with_options", "to_deployment")
    return page(
        "Decorator",
        "`from prefect_gpu import gpu`",
        document(gpu, "@gpu"),
        document(GpuFlow, members=members),
        document(sweep),
        document(watch),
        document(Watched),
    )


def training_page() -> str:
    """What a training function uses."""
    from prefect_gpu.training import CheckpointError, NonFiniteLoss, TrainingRun, TrainingRunError, training_run
    from prefect_gpu.training.callbacks import sklearn, xgboost
    from prefect_gpu.training.checkpoints import Checkpoint, CheckpointStore

    members = ("ready", "steps", "report", "restore", "saving", "steps_left", "stop_requested", "stopped")
    return page(
        "Training API",
        "What a training function uses. It works the same without a pool, without Prefect and without a GPU; it needs "
        "the standard library, and websockets inside the pool.",
        document(training_run),
        "`from prefect_gpu import training_run`",
        document(TrainingRun, members=members),
        "## Errors",
        *(document(one, level=3) for one in (NonFiniteLoss, TrainingRunError, CheckpointError)),
        "## XGBoost",
        "`from prefect_gpu.training.callbacks.xgboost import XGBoostReporter, load_booster`",
        document(xgboost.XGBoostReporter, level=3),
        document(xgboost.load_booster, level=3),
        "## scikit-learn",
        "`from prefect_gpu.training.callbacks.sklearn import fit_incrementally, fit_warm_start`",
        *(document(one, level=3) for one in (sklearn.fit_incrementally, sklearn.fit_warm_start, sklearn.save_model,
                                             sklearn.load_model)),
        "## Checkpoints",
        "Used by `report(checkpoint=...)` and `restore()`; seldom needed directly.",
        document(CheckpointStore, level=3, members=("save", "restore")),
        document(Checkpoint, level=3),
        fields_table(Checkpoint),
    )  # fmt: skip


def cli_page() -> str:
    """The command line, from its own parser."""
    from typer.models import ArgumentInfo

    from prefect_gpu.cli import app

    parts = []
    commands = {
        one.name or one.callback.__name__.replace("_", "-"): one for one in app.registered_commands if one.callback
    }
    for title, command in sorted(commands.items()):
        function = command.callback
        rows = ["| option | |", "|---|---|"]
        for name, hint in typing.get_type_hints(function, include_extras=True).items():
            if name == "return":
                continue
            option = hint.__metadata__[0]
            first = option.default if isinstance(option.default, str) else ""  # where Annotated's first name goes
            names = [*([first] if first.startswith("-") else []), *(option.param_decls or [])]
            names = names or ["--" + name.replace("_", "-")]
            flag = hint.__origin__ is bool
            kinds = [part.__name__ for part in typing.get_args(hint.__origin__) or (hint.__origin__,)]
            kind = (
                "" if flag else f" {option.metavar or {'int': 'N', 'float': 'N', 'Path': 'FILE'}.get(kinds[0], 'TEXT')}"
            )
            if isinstance(option, ArgumentInfo) and option.metavar:
                names, kind = [option.metavar], ""
            shown = ", ".join(f"`{one}{kind}`" for one in names)
            rows.append(f"| {shown} | {cell(option.help or '')} |")
        parts.append("\n".join([f"## `prefect-gpu {title}`", "", prose(function.__doc__), "", *rows]))
    return page(
        "Commands",
        "The command `prefect-gpu` looks at this node, at the set-up and at the runs that have finished, and "
        "simulates; it changes nothing but the blocks that it is told to register. Pools, workers, deployments and "
        "runs are handled with Prefect's own command, `prefect`. `prefect-gpu --version` shows the version. Exit "
        "codes: 0 all is well, 1 something stands in the way, 2 the input is wrong.",
        *parts,
    )


def scheduler_page() -> str:
    """The core: events, instructions, what they carry, policies, profiles."""
    from prefect_gpu.scheduling import profiles, record
    from prefect_gpu.scheduling.model import cluster, events, instructions, jobs
    from prefect_gpu.scheduling.order import orders as order
    from prefect_gpu.scheduling.placement import base as placement
    from prefect_gpu.scheduling.placement.best_fit import BestFit
    from prefect_gpu.scheduling.scheduler import Scheduler
    from prefect_gpu.scheduling.sharing import rules as sharing

    def dataclass_entry(cls: Any) -> str:
        table = fields_table(cls) if dataclasses.fields(cls) else ""
        return f"{document(cls, level=3)}\n\n{table}"

    statuses = "\n".join(f"- `{status.value}`" for status in jobs.Status)
    names = ", ".join(f"`{name}`" for name in sorted(profiles.all_profiles()))
    simulated = ", ".join(f"`{name}`" for name, make in sorted(profiles.all_profiles().items()) if make().order.goes_by)
    policies: list[Any] = [order.Order, order.Fifo, placement.PlacementPolicy, BestFit,
                           sharing.Sharing, sharing.NoSharing, sharing.DeclaredMemory]  # fmt: skip
    return page(
        "Scheduler",
        "The core: events go in, instructions come out. It does no I/O and reads no clock.",
        document(Scheduler, members=("handle", "next_due")),
        "## Events",
        prose(events.__doc__),
        *(dataclass_entry(cls) for cls in typing.get_args(events.Event)),
        "## Instructions",
        *(dataclass_entry(cls) for cls in typing.get_args(instructions.Instruction)),
        "## What they carry",
        *(dataclass_entry(cls) for cls in (jobs.Request, cluster.Placement, cluster.Node, cluster.Device,
                                           cluster.Quotas, cluster.Queue)),
        f"### `Status`\n\n{prose(jobs.Status.__doc__)}\n\n{statuses}",
        "## Profiles",
        f"Known by name: {names}.",
        f"For simulations only: {simulated}. They go by the owner or priority of runs, which a pool's cannot say.",
        dataclass_entry(profiles.Profile),
        "## Policies",
        *(document(cls, level=3, members=_public(cls)) for cls in policies),
        "## Event logs",
        prose(record.__doc__),
        document(record.replay, level=3),
    )  # fmt: skip


def _public(cls: Any) -> list[str]:
    return [name for name, item in vars(cls).items() if not name.startswith("_") and inspect.isfunction(item)]


def driver_page() -> str:
    """The driver's interface and its conformance suite."""
    from prefect_gpu.runtime.drivers import base, conformance

    suite = [item for item in vars(conformance).values()
             if inspect.isclass(item) and item.__module__ == conformance.__name__ and item.__doc__]  # fmt: skip
    parts: list[str] = [
        document(base.Driver, members=("start", "close", "launch", "adopt")),
        document(base.RunHandle, members=("wait", "stop")),
        document(base.LaunchSpec),
        fields_table(base.LaunchSpec),
        document(base.ExitReport),
        fields_table(base.ExitReport),
        document(base.LaunchError),
        "## The conformance suite",
        f"`{conformance.__name__}`",
        prose(conformance.__doc__),
        *(document(item, level=3) if "__init__" in vars(item) else f"### `{item.__name__}`\n\n{prose(item.__doc__)}"
          for item in suite),
    ]  # fmt: skip
    return page("Drivers", prose(base.__doc__), *parts)


def history_page() -> str:
    """The history's columns, its classes, its tables."""
    from prefect_gpu.storage.history import History
    from prefect_gpu.storage.migrations import REVISIONS, revision_table
    from prefect_gpu.storage.row import ContentionRow, HistoryRow
    from prefect_gpu.storage.schema import SCHEMA_VERSION, contention_table, runs_table, version_table

    def columns(row: type, table: Any) -> str:
        about: dict[str, str] = {}
        body = inspect.cleandoc(row.__doc__ or "").partition("Attributes:\n")[2].partition("\nRaises:")[0]
        for entry in entries(textwrap.dedent(body)):
            names, _, words = entry.partition(": ")
            about |= {name.strip(): words for name in names.split(",")}
        rows = ["| column | type | may be empty | |", "|---|---|---|---|"]
        for column in table.columns:
            words = re.sub(r"``([^`]+)``", r"`\1`", about.get(column.name, ""))
            rows.append(f"| `{column.name}` | {column.type!s} | {'yes' if column.nullable else 'no'} | {cell(words)} |")
        return "\n".join(rows)

    return page(
        "History",
        f"One row for each attempt of each finished run, in the table `{runs_table.name}`. Times are Unix seconds, "
        "durations seconds, sizes bytes. Unknown values are empty. The description of a group of columns is repeated "
        f"for each. The table `{revision_table.name}` holds the schema's revision, {REVISIONS[-1]} in this release, "
        f"and `{version_table.name}` the oldest one, {SCHEMA_VERSION}, whose prefect-gpu can use the tables.",
        columns(HistoryRow, runs_table),
        f"## `{contention_table.name}`\n\n{prose((ContentionRow.__doc__ or '').partition('Attributes:')[0])}",
        columns(ContentionRow, contention_table),
        document(History, members=("record", "rows", "record_contention", "contention", "count", "close")),
    )


def channel_page() -> str:
    """The words of the channel."""
    from prefect_gpu.training import protocol

    source = inspect.getsource(protocol).partition('"""\n\nfrom')[0].removeprefix('"""')
    text = source.replace("DESIGN: ", "")
    table = re.search(r"(=+ +=.*?\n)(.*?)(=+ +=.*?\n)(.*?)(=+ +=.*?)\n", text, re.S)
    assert table is not None
    starts = [match.start() for match in re.finditer("=+", table[1])]

    def cells(line: str) -> str:
        parts = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        return f"| {' | '.join(parts)} |"

    rows = [cells(table[2].rstrip("\n")), "|---|---|---|", *(cells(line) for line in table[4].splitlines())]
    text = re.sub(r"``([^`]+)``", r"`\1`", text.replace(table[0], "\n".join(rows) + "\n"))
    constants = inspect.getsource(protocol).partition("PROTOCOL_VERSION")
    code = f"{constants[1]}{constants[2]}".strip()
    first, _, rest = text.strip().partition("\n")
    return page("Channel", first, rest.strip(), "```python\n" + code + "\n```")


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "settings.md": ("Settings: what a worker may be told", settings_page),
    "job-variables.md": ("Job variables: what a run may ask for", job_variables_page),
    "decorator.md": ("Decorator `@gpu`, `sweep` and `watch`", decorator_page),
    "training.md": ("Training API: `training_run`, callbacks, checkpoints", training_page),
    "cli.md": ("Commands: `prefect-gpu`", cli_page),
    "history.md": ("History: the columns", history_page),
    "scheduler.md": ("Scheduler: events, instructions, policies, profiles", scheduler_page),
    "drivers.md": ("Drivers: how to start runs elsewhere", driver_page),
    "channel.md": ("Channel: what runs and the worker say to each other", channel_page),
}


def build() -> dict[str, str]:
    """Every page by its name."""
    listed = "\n".join(f"- [{title}]({name})" for name, (title, _) in PAGES.items())
    pages = {"README.md": page("Reference", "Made from the code by `python docs/build_reference.py`.", listed)}
    return pages | {name: make() for name, (_, make) in PAGES.items()}


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or compare them; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; end with 1 if a page is out of date")
    chosen = parser.parse_args(arguments)
    pages = build()
    stale = [name for name, text in pages.items()
             if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text]  # fmt: skip
    left = [path.name for path in FOLDER.glob("*.md") if path.name not in pages] if FOLDER.exists() else []
    if chosen.check:
        for name in (*stale, *left):
            print(
                f"docs/reference/{name} is not what the code says: run python docs/build_reference.py", file=sys.stderr
            )
        return 1 if stale or left else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    for name in left:
        (FOLDER / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
