"""What both demos do: an output folder of their own, steps that say how long they took, and words when one fails."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from prefect_gpu.demo.board import Seen
from prefect_gpu.demo.stage import DEPLOYMENTS, REPOSITORY, Stage
from prefect_gpu.storage.row import HistoryRow

_MARKER = ".prefect-gpu-demo"  # says that a folder is the demo's own and may be emptied
_LIBRARIES = {"matplotlib": "matplotlib", "plotly": "plotly", "optuna": "optuna", "sklearn": "scikit-learn",
              "xgboost": "xgboost"}  # fmt: skip
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class DemoError(RuntimeError):
    """The demo cannot go on. The message says why and what to do."""


def check_checkout() -> None:
    """Make sure that the demo's libraries and the repository's flows are there.

    Raises:
        DemoError: They are not.
    """
    if not DEPLOYMENTS.exists():
        raise DemoError(f"It shows the flows of the repository, and {REPOSITORY} is none: run it from a checkout.")
    missing = [name for module, name in _LIBRARIES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise DemoError(f"It needs {', '.join(missing)}: pip install -e '.[demo]', or run `make demo`.")


def take_folder(output: Path) -> None:
    """Make the output folder, or empty it if it is an earlier demo's.

    Raises:
        DemoError: It is something else, or this user may not write there.
    """
    try:
        if output.exists() and not output.is_dir():
            raise DemoError(f"{output} is no folder: name another one with --output.")
        output.mkdir(parents=True, exist_ok=True)
        if not (output / _MARKER).exists() and any(output.iterdir()):
            raise DemoError(f"{output} has files that are not the demo's: name another folder with --output.")
        (output / _MARKER).touch()
        for path in output.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _MARKER:
                path.unlink()
    except OSError as error:
        raise DemoError(f"{output} cannot be used ({error.strerror}): name another folder with --output.") from error


@contextlib.contextmanager
def timed(console: Console, words: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    began = time.monotonic()
    if not console.is_terminal:
        console.print(f"  {words} …", soft_wrap=True)
    with console.status(f"{words} …") if console.is_terminal else contextlib.nullcontext():
        yield
    console.print(f"[green]✓[/] {words} ([dim]{time.monotonic() - began:.1f} s[/])")


def look(stage: Stage, *, progress: bool = True) -> list[Seen]:
    """All runs as they are now.

    Args:
        progress: Also how far each is. Prefect's server, which all wait for, reads hundreds of artifacts for that.
    """
    runs, devices = stage.runs(), stage.devices()
    progresses = stage.progress() if progress else {}
    seen = []
    for run in runs:
        percent, curve = progresses.get(run["id"], (0.0, ""))
        state: dict[str, Any] = run["state"] or {}
        final = state.get("type") in FINAL
        seen.append(
            Seen(
                run_id=run["id"], name=run["name"], flow_name=run["flow_name"], state=state.get("name") or "",
                final=final, why=state.get("message") or "", percent=percent, curve=curve,
                devices=() if final else devices.get(run["id"], ()),
            )
        )  # fmt: skip
    return seen


def problem_of(stage: Stage, row: HistoryRow) -> str:
    """What went wrong with a run, and the end of its log."""
    return f"{row.run_name} {row.outcome}: {row.message}\nThe end of its log:\n{stage.logs(row.run_id)}"


def explain(log_ends: Iterable[tuple[str, str]], error: Exception, output: Path) -> None:
    """The end of each log on standard error, where the error does not hold it already."""
    for name, end in log_ends:
        if end.splitlines()[-1] not in str(error):
            print(f"\n--- the end of the {name}'s log ---\n{end}", file=sys.stderr)
    print(f"\nWhole logs: {output / 'logs'}", file=sys.stderr)
