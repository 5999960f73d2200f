"""The demo's last page: what each training did, what came of it, and what to try next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from prefect_gpu.phases import PHASES
from prefect_gpu.reporting.spans import REPORTED, phase_seconds
from prefect_gpu.reporting.tables import FIGURES, WHOLE, WORDS, each, plain_table
from prefect_gpu.retraining.registry import ModelRegistry
from prefect_gpu.storage.row import HistoryRow

_WIDE = 100


def results_table(rows: Sequence[HistoryRow], width: int) -> Table:
    """One line per training, in order of their start. Seconds."""
    wide = width >= _WIDE
    phases = (PHASES[phase].past.capitalize() for phase in REPORTED)
    columns = [("Run", WORDS), ("Device", WHOLE), *each(FIGURES, "Waited", *phases, "Loss")]
    table = plain_table(*columns, gap=1 + int(wide))
    for row in rows:
        cells = [
            Text(row.run_name or row.run_id, no_wrap=True, overflow="ellipsis"),
            Text(", ".join(row.devices)),
        ]
        cells += [Text(_seconds(value)) for value in (row.waited_s, *phase_seconds(row).values())]
        if row.outcome == "completed":
            cells.append(Text("–" if row.final_loss is None else f"{row.final_loss:.4f}"))
        else:
            cells.append(Text(row.outcome, style="bold red"))
        table.add_row(*cells)
    return table


def closing_words(output: Path, *, sweep: Path, pipeline: Path) -> str:
    """What came of it, where the pictures are, and what to try next, as Rich's markup."""
    lines = [""]
    lines += best_model(sweep)
    promoted = [one for one in ModelRegistry(pipeline).decisions() if one.action == "promoted"]
    if promoted:
        lines.append(f"The retraining pipeline promoted {promoted[-1].champion}: {promoted[-1].reason}")
    shown = shown_path(output)
    lines += [
        "",
        "[bold]Look at what the devices did[/]",
        f"  {shown}/timeline.png   a picture",
        f"  {shown}/timeline.html  the same to point at and zoom into, in a browser",
        "",
        "[bold]Try next[/]",
        "  make demo KEEP=1      the same, and Prefect's pages stay up for you to look around",
        f"  PREFECT_INTEGRATIONS_GPU_HISTORY_URL={shlex.quote(f'sqlite:///{output}/history.db')} \\",
        "    .venv/bin/prefect-gpu history      these runs, with all that is known of them (--csv, --json)",
        "  .venv/bin/prefect-gpu timeline     draws such pictures of your own runs (--png FILE, --html FILE)",
        "  flows/automl_sweep.py              the sweep: put your own data and training in",
        "  .venv/bin/prefect-gpu doctor       is this machine ready for your own pool?",
    ]
    return "\n".join(lines)


def best_model(sweep: Path) -> list[str]:
    """A line about the best model of the sweep in this folder; none if there is no model."""
    best = _read(sweep / "best.json")
    if not best:
        return []
    kind = "neural network (mlp)" if best["parameters"].get("family") == "mlp" else "boosted trees (xgboost)"
    accuracy = f"{best['test_accuracy']:.1%} of the test data right"
    return [f"The sweep's best model: trial {best['trial']}, {kind}, {accuracy}."]


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f} s" if value < 0.95 else f"{value:.1f} s"


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def shown_path(path: Path) -> str:
    """A path as short as it can be written from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
