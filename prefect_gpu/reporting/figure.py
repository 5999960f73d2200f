"""An empty figure for a file, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.reporting.timeline import MissingLibrary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, *, dpi: int = 110) -> Figure:
    """A figure of so many inches, without pyplot: its global state and its windows are of no use for a file.

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
    figure = Figure(figsize=(width, height), dpi=dpi)
    FigureCanvasAgg(figure)
    return figure
