"""A run's losses as its page in Prefect has them: written by the worker, read by whoever watches the run from afar."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prefect_gpu.reporting.sparkline import sparkline

_ROWS = 12
_ROW = re.compile(r"^\| *([^|\s]+) *\| *([^|\s]+) *\|$", re.MULTILINE)


def losses_markdown(points: Sequence[tuple[float, float]], best: float | None) -> str:
    """The curve in one line, and a table of some of its points, from the first one to the last.

    Args:
        points: Step and loss, in order.
        best: The best loss so far.
    """
    if not points:
        return ""
    some = list(points[:: -(-len(points) // _ROWS)])
    if some[-1] != points[-1]:
        some.append(points[-1])
    rows = "\n".join(f"| {step:g} | {loss:.6g} |" for step, loss in some)
    return f"`{sparkline([loss for _, loss in points])}`  best {best:.6g}\n\n| step | loss |\n|---:|---:|\n{rows}\n"


def read_losses(markdown: str) -> list[tuple[float, float]]:
    """The points of such a table; what is no pair of numbers is left out.

    Example:
        >>> read_losses(losses_markdown([(1, 0.5), (2, 0.25)], 0.25))
        [(1.0, 0.5), (2.0, 0.25)]
    """
    points = []
    for step, loss in _ROW.findall(markdown):
        try:
            points.append((float(step), float(loss)))
        except ValueError:  # the head of the table
            continue
    return points
