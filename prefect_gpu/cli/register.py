"""``prefect-gpu register``: Prefect blocks from YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prefect_gpu.cli.common import fail


def register(
    files: Annotated[list[Path], typer.Argument(help="YAML files, such as those in `blocks/`.", metavar="FILE...")],
    overwrite: Annotated[bool, typer.Option(help="Replace blocks that there are already.")] = False,
    check: Annotated[bool, typer.Option(help="Only check the files, without a server.")] = False,
) -> None:
    """Register the Prefect blocks that YAML files describe: clusters, quotas and places of checkpoints.

    A file says ``block:`` (`gpu-cluster`, `gpu-slurm`, `gpu-quota` or `checkpoint-storage`), ``name:``, and the block's
    fields; several blocks in one file are separated by ``---``. In place of a value, ``{from_file: PATH}`` is a file's
    content, the path being relative to the YAML file, and ``{from_environment: NAME}`` is an environment variable's.
    """
    from prefect_gpu.blocks.base import BlockError
    from prefect_gpu.blocks.files import read_file, save

    try:
        described = [one for file in files for one in read_file(file)]
        for one in described:
            if check:
                typer.echo(f"{one.reference}: all right")
            else:
                save(one, overwrite=overwrite)
                typer.echo(f"{one.reference}: registered")
    except BlockError as error:
        fail(str(error), code=2)
