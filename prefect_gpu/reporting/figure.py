"""An empty figure for a file, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MOST_PIXELS = 65_000  # of a side: matplotlib draws no longer ones


class MissingLibrary(RuntimeError):
    """A picture needs a library that is not installed. The message says how to get it."""


def new_figure(width: float, height: float, *, dpi: int = 110) -> Figure:
    """A figure of so many inches, without pyplot: its global state and its windows are of no use for a file.

    One that is very long, with a line for each of a thousand devices, is coarser.

    Raises:
        MissingLibrary: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"The picture needs {error.name}, which is not installed: pip install 'prefect-gpu[plot]'"
        ) from error
    figure = Figure(figsize=(width, height), dpi=min(dpi, _MOST_PIXELS / max(width, height)))
    FigureCanvasAgg(figure)
    return figure


def frame(axes: Axes, *sides: str) -> None:
    """Draw only these sides of the frame: ``"bottom"``, ``"left"`` ..."""
    for name, side in axes.spines.items():
        side.set_visible(name in sides)
