"""What the devices did, as a picture: the one function that a program needs.

Example:
    ```python
    with History(url) as history:
        write_timeline(history.rows(), png=Path("timeline.png"), html=Path("timeline.html"))
    ```
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prefect_gpu.reporting.figure import MissingLibrary
from prefect_gpu.reporting.spans import Outage, Timeline, build_timeline
from prefect_gpu.storage.row import HistoryRow

TITLE = "What the devices did"


def write_timeline(
    rows: Iterable[HistoryRow],
    *,
    png: Path | None = None,
    html: Path | None = None,
    title: str = TITLE,
    without_device: bool = False,
    outages: Iterable[Outage] = (),
) -> Timeline | None:
    """Draw finished runs as lanes of their devices, with their phases, and below it how many runs waited.

    Args:
        rows: Rows of the history, in any order.
        png: A picture is written here (needs matplotlib).
        html: A page to look into is written here; it works without a network (needs plotly).
        title: Above both.
        without_device: Also show runs that held no device.
        outages: When nodes were not there.

    Returns:
        What was drawn; None, and nothing is written, if no run held a device.

    Raises:
        MissingLibrary: matplotlib or plotly is not installed.
        OSError: A file cannot be written.
    """
    timeline = build_timeline(rows, without_device=without_device, outages=outages)
    if timeline is None:
        return None
    try:
        if png is not None:
            from prefect_gpu.reporting.png import write_png

            write_png(timeline, png, title=title)
        if html is not None:
            from prefect_gpu.reporting.html import write_html

            write_html(timeline, html, title=title)
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"The timeline needs {error.name}, which is not installed: pip install 'prefect-gpu[demo]'"
        ) from error
    return timeline
