"""The command ``prefect-gpu``: look at this node, the set-up and the runs that have finished; simulate; set up blocks.

One module per command. Whatever is slow to import is imported inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from prefect_gpu.cli.cordon import cordon, uncordon
from prefect_gpu.cli.devices import devices
from prefect_gpu.cli.doctor import doctor
from prefect_gpu.cli.estimate import estimate
from prefect_gpu.cli.history import history
from prefect_gpu.cli.init import init
from prefect_gpu.cli.papers import papers
from prefect_gpu.cli.register import register
from prefect_gpu.cli.shares import shares
from prefect_gpu.cli.simulate import simulate
from prefect_gpu.cli.status import status
from prefect_gpu.cli.timeline import timeline
from prefect_gpu.cli.train_policy import train_policy
from prefect_gpu.cli.up import down, up
from prefect_gpu.cli.what_if import what_if

__all__ = ["app"]

app = typer.Typer(
    name="prefect-gpu",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they show local variables, and passwords are among those
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from prefect_gpu import __version__

        typer.echo(f"prefect-gpu {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A Prefect work pool that learns what training runs need and keeps every GPU training."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without × is no reason to fail


app.command()(init)
app.command()(up)
app.command()(down)
app.command()(doctor)
app.command()(devices)
app.command()(cordon)
app.command()(uncordon)
app.command()(status)
app.command()(shares)
app.command()(history)
app.command()(estimate)
app.command()(timeline)
app.command()(simulate)
app.command()(what_if)
app.command()(papers)
app.command(name="train-policy")(train_policy)
app.command()(register)
