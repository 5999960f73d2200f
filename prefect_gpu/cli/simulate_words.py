"""What ``prefect-gpu simulate`` says: its figures with their names, how far it is, and what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prefect_gpu.cli import common

if TYPE_CHECKING:
    from prefect_gpu.simulation.results import Results

_NAMED = 5  # jobs that a message names
_LABELS = {
    "jobs": "Jobs that ended",
    "mean_jct_s": "Completion time, mean",
    "p50_jct_s": "… of the median job",
    "p90_jct_s": "… 9 in 10 are faster",
    "p99_jct_s": "… 99 in 100 are faster",
    "makespan_s": "First start to last end",
    "mean_wait_s": "Wait, mean",
    "gpu_busy_fraction": "Devices busy",
    "wall_s": "Simulated in",
    "jobs_per_s": "Jobs per second",
    "decisions": "Decisions",
    "decision_p99_s": "99 in 100 decisions within",
    "worst_fairness": "Finish-time fairness, worst",
    "unfair_fraction": "… above 1.05",
    "satisfied_fraction": "Ended by their deadlines",
    "attainable_fraction": "… would if each were alone",
    "refused": "Refused",
    "late": "Promised, and late",
    "pods": "Pods",
    "lost": "… for which there was no room",
    "allocated_at_100_fraction": "Allocated when 100 % was asked",
    "allocated_at_130_fraction": "… when 130 % was asked",
    "allocated_fraction": "… at the end",
}


@contextmanager
def progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    screen = Console(stderr=True)
    if not shown or not screen.is_terminal:
        yield lambda _: None
        return
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("jobs", total=total)
        yield lambda done: bar.update(task, completed=done)


def show(results: Results, title: str) -> None:
    """Print the figures as a table."""
    from rich.text import Text

    from prefect_gpu.reporting.simulated import duration
    from prefect_gpu.reporting.tables import FIGURES, WORDS, plain_table

    table = plain_table(("", WORDS), ("", FIGURES), ("", {**FIGURES, "style": "dim"}), show_header=False)
    for name, value in results.summary().items():
        seconds = name.endswith("_s") and name != "jobs_per_s"
        if seconds:
            words = f"{value * 1000:.3g} ms" if name == "decision_p99_s" else duration(value)
        elif name.endswith("_fraction"):
            words = f"{value:.1%}"
        else:
            words = f"{value:.2f}" if name == "worst_fairness" else f"{value:,.0f}"
        exact = f"{value:,.0f} s" if seconds and value >= 90 else ""
        table.add_row(_LABELS[name], Text(words), Text(exact))
    screen = common.console()
    screen.print(Text(title, style="bold"), soft_wrap=True)
    screen.print(table)


def some(names: Sequence[str]) -> str:
    """The first few of these names."""
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def unread(wrong: Exception) -> str:
    """What is wrong with a table or a trace; of a file that cannot be opened, which one and why."""
    if isinstance(wrong, OSError) and wrong.filename is not None:
        return f"{wrong.filename} cannot be read: {wrong.strerror}. Name what this user may read."
    return str(wrong)


def in_words_of_options(message: str) -> str:
    """A message about an argument, where the user gave an option."""
    message = re.sub(r"(world|knowledge)='([\w-]+)'", r"--\1 \2", message)
    for argument, option in (
        ("restart_cost_s=", "--restart-cost "),
        ("sharing=True", "--sharing"),
        ("tables=", "--tables "),
        ("gpus_per_node=", "--gpus-per-node "),
        ("seed=", "--seed "),
        ("error=", "--error "),
    ):
        message = message.replace(argument, option)
    return message
