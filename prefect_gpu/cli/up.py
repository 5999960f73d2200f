"""``prefect-gpu up`` and ``down``: a server, a pool and a worker for trying out, in one go."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from prefect_gpu.cli import common
from prefect_gpu.cli.init import Kind

_PREFIX = "PREFECT_INTEGRATIONS_GPU_"
_MOST_DEVICES = 256


def up(
    kind: Annotated[
        Kind, typer.Option(help="process: runs are processes. docker: containers of this machine's Docker Engine.")
    ] = Kind.process,
    pool: Annotated[str, typer.Option(metavar="NAME", help="Name of the work pool.")] = "gpus",
    virtual_devices: Annotated[
        int | None,
        typer.Option(
            min=1, max=_MOST_DEVICES, help="Devices to declare where there is no GPU.", show_default="one for each core"
        ),
    ] = None,
) -> None:
    """Start a Prefect server, a work pool and a worker for this folder, to try things out.

    They go on in the background, with everything that is theirs in .prefect-gpu/. The worker's settings are those of
    the environment, PREFECT_INTEGRATIONS_GPU_…, but it keeps a state folder and a history of its own, and knows no
    blocks of another server. What you start in this folder finds them by a line in its .env. `prefect-gpu down` ends
    them.
    """
    from prefect_gpu.lab.dotenv import put
    from prefect_gpu.lab.sandbox import SandboxError
    from prefect_gpu.lab.tryout import VIRTUAL_DEVICES, TryOut

    here = Path.cwd()
    tryout = TryOut(here)
    found = tryout.running()
    if found is not None and found.pool != pool:
        common.fail(f"--pool {pool}: the pool {found.pool} is up here. End it first: prefect-gpu down.", code=2)
    if found is not None and found.kind != kind.value:
        common.fail(f"--kind {kind.value}: {found.kind} is up here. End it first: prefect-gpu down.", code=2)
    settings = {} if virtual_devices is None else {VIRTUAL_DEVICES: str(virtual_devices)}
    if found is not None and settings and settings[VIRTUAL_DEVICES] != found.virtual_devices:
        common.fail(
            f"--virtual-devices {virtual_devices}: what is up here was not started with that. End it first: "
            "prefect-gpu down.",
            code=2,
        )
    if found is not None and not tryout.has_worker():
        common.fail(
            f"The server is up here, and the worker of the pool {found.pool} is gone; {tryout.folder}/worker-1.log may "
            "say why. Start both again: prefect-gpu down && prefect-gpu up."
        )
    if found is None:
        typer.echo("Starting a Prefect server and a worker ...")
        try:
            found = tryout.start(pool, _settings() | settings, kind.value)
        except SandboxError as error:
            common.fail(str(error))
        except OSError as error:
            common.fail(f"{tryout.folder} cannot be used: {error.strerror}. Go to a folder that this user may write.")
    try:
        put(here / ".env", found.settings())
    except OSError as error:
        words = " and ".join(f"{name}={value}" for name, value in found.settings().items())
        common.fail(f"{here / '.env'} cannot be written: {error.strerror}. Set {words} yourself.")
    typer.echo(
        f"Up: the pool {found.pool!r} has a worker.\n"
        f"  Prefect's pages   {found.ui_url}\n"
        f"  logs              {tryout.folder}/server.log, worker-1.log\n"
        "What you start in this folder uses it: see its .env. Watch it with `prefect-gpu status`; end it with "
        "`prefect-gpu down`."
    )
    for name, value in found.settings().items():
        if os.environ.get(name, value) != value:
            typer.echo(f"{name} is set in this shell, and counts more than .env: unset it.", err=True)


def _settings() -> dict[str, str]:
    """What the environment sets for a worker, but for folders, which are its own here, and blocks of another server."""
    left_out = {f"{_PREFIX}{name}" for name in ("STATE_DIR", "HISTORY_URL", "CLUSTER", "SLURM", "QUOTA")}
    found = {name: value for name, value in os.environ.items() if name.startswith(_PREFIX) and name not in left_out}
    return {name: value for name, value in found.items() if not value.startswith("block:")}


def down(
    wait: Annotated[bool, typer.Option("--wait", help="First wait until all runs have ended.")] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove .prefect-gpu/ too: runs, checkpoints, history.")
    ] = False,
) -> None:
    """End what `prefect-gpu up` has started in this folder. Its runs and their history stay for the next time."""
    from prefect_gpu.lab.dotenv import forget
    from prefect_gpu.lab.tryout import TryOut

    tryout = TryOut(Path.cwd())
    found = tryout.running()
    training = tryout.training(found) if found is not None else 0
    if training and wait:
        typer.echo(f"Waiting for {common.plural(training, 'run')} ...")
    ended = tryout.end(drain=wait)
    try:
        forget(Path.cwd() / ".env")
    except OSError as error:
        common.fail(
            f"All has ended, but {Path.cwd() / '.env'} cannot be written: {error.strerror}. Take the lines of "
            "prefect-gpu up out of it yourself."
        )
    if delete and not tryout.delete():
        common.fail(
            f"{tryout.folder} has what this user may not remove. Remove it: sudo rm -r {quote(str(tryout.folder))}."
        )
    if not ended:
        typer.echo("Nothing was up in this folder." + (f" {tryout.folder} is removed." if delete else ""))
        return
    words = f" {common.plural(training, 'run')} that trained {'was' if training == 1 else 'were'} ended with it."
    typer.echo(f"Down.{words if training and not wait else ''}")
