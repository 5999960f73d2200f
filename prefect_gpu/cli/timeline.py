"""``prefect-gpu timeline``: what the devices did, as a picture and as a page to look into."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from prefect_gpu.cli import common

_HOUR_S = 3600.0


def timeline(
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture to this file.")] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write an interactive page, which works without a network."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=2**31, help="Number of runs at most, the newest.")] = 200,
    hours: Annotated[float | None, typer.Option(min=0, help="Only runs that ended in the last N hours.")] = None,
    flow: Annotated[str | None, typer.Option(help="Only runs of this flow.")] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Also show runs that held no device.")] = False,
) -> None:
    """Draw what each device did: which run prepared, trained and saved when, and how many runs waited."""
    if png is None and html is None:
        common.fail("Say what to write: --png FILE, --html FILE, or both.", code=2)
    url = common.load_settings().resolved_history_url
    from prefect_gpu.reporting.timeline import write_timeline

    since = None if hours is None else time.time() - hours * _HOUR_S
    rows, total = common.read_history(url, limit=limit, flow_name=flow, since=since)
    with common.writing(png, html):
        drawn = write_timeline(rows, png=png, html=html, without_device=all_runs)
    if drawn is None:
        common.fail("No run of this kind has held a device yet." if total else "No run has finished yet.")
    where = " and ".join(str(path) for path in (png, html) if path is not None)
    typer.echo(f"Wrote {common.plural(drawn.run_count, 'run')} to {where}.")
