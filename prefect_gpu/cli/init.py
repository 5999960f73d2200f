"""``prefect-gpu init``: a folder with a training that works, to begin from."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from enum import Enum
from importlib import metadata
from pathlib import Path
from shlex import quote
from string import Template
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from prefect_gpu.cli import common

# Names that need no quotes in YAML.
_PLAIN = re.compile(r"(?!(?:true|false|yes|no|on|off|null|y|n)$)[a-z][a-z0-9_-]*", re.IGNORECASE)
_TEMPLATES = Path(__file__).parents[1] / "templates"


class Kind(str, Enum):
    """Where the trainings are to run."""

    process = "process"
    docker = "docker"
    slurm = "slurm"


_FILES = {
    Kind.process: ("train.py", "prefect.yaml"),
    Kind.docker: ("train.py", "prefect.yaml", "Dockerfile", ".dockerignore"),
    Kind.slurm: ("train.py", "prefect.yaml", "slurm.yaml"),
}


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; it is made if it is not there.")] = Path(),
    kind: Annotated[
        Kind,
        typer.Option(
            help="process: on the worker's machine. docker: in containers of a Docker Engine. slurm: on nodes that "
            "Slurm lends."
        ),
    ] = Kind.process,
    pool: Annotated[str, typer.Option(metavar="NAME", help="Name of the work pool.")] = "gpus",
) -> None:
    """Write a training that works, and its deployment, to begin from. Nothing that is there is overwritten."""
    from prefect.types.names import BANNED_CHARACTERS

    if not pool.strip():
        common.fail(f"--pool {pool!r} is no name of a work pool: give it one, such as gpus.", code=2)
    if any(character in pool for character in BANNED_CHARACTERS):
        common.fail(f"--pool {pool!r} is no name of a work pool: leave out {' '.join(BANNED_CHARACTERS)}.", code=2)
    try:
        there = [name for name in _FILES[kind] if (folder / name).exists()]
        if there:
            are = "are" if len(there) > 1 else "is"
            common.fail(f"{', '.join(there)} {are} in {folder.resolve()} already: name another folder.", code=2)
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES[kind]:
            (folder / name).write_text(_text(name, kind, pool))
    except OSError as error:
        for name in _FILES[kind]:  # none was there before: another attempt is to find none, either
            with suppress(OSError):
                (folder / name).unlink()
        common.fail(
            f"{error.filename or folder} cannot be written: {error.strerror}. Name a folder that this user may write."
        )
    typer.echo(
        f"Written: {', '.join(str(folder / name) for name in _FILES[kind])}\n\nNow:\n\n{_next(folder, kind, pool)}"
    )


def _text(name: str, kind: Kind, pool: str) -> str:
    places = (_TEMPLATES / kind.value / name, _TEMPLATES / name, _TEMPLATES / Kind.process.value / name)
    file = next(place for place in places if place.exists())
    quoted = json.dumps(pool)  # as YAML and Python have strings, too
    text = file.read_text().replace('"$pool"', quoted.replace("$", "$$"))
    return Template(text).safe_substitute(pool=pool if _PLAIN.fullmatch(pool) else quoted)


def _checkout() -> str:
    """The folder that prefect-gpu was installed from, which an image cannot reach; empty if it came from an index."""
    origin = json.loads(metadata.distribution("prefect-gpu").read_text("direct_url.json") or "{}")
    return unquote(urlsplit(origin.get("url", "")).path) if "dir_info" in origin else ""


def _next(folder: Path, kind: Kind, pool: str) -> str:
    steps = [] if folder.resolve() == Path.cwd() else [(f"cd {quote(str(folder))}", "")]
    if kind is Kind.slurm:
        return _shown(steps + _with_slurm(pool))
    asked = "" if kind is Kind.process else f" --kind {kind.value}"
    asked += "" if pool == "gpus" else f" --pool {quote(pool)}"
    steps.append((f"prefect-gpu up{asked}", "a server, the pool and a worker, for trying out"))
    if kind is Kind.process:
        steps.append(("python train.py", "four trainings in the pool"))
    else:
        if checkout := _checkout():
            wheel = f"pip wheel --no-deps --wheel-dir wheels {quote(checkout)}"
            steps.append((wheel, "this prefect-gpu, for the image"))
        steps.append(("docker build --tag trainings:1 .", "the image that the trainings run in"))
    steps += [
        ("prefect --no-prompt deploy --all", "the training as a deployment"),
        (f"prefect deployment run {quote(f'train/{pool}')} --watch", "one run of it"),
        ("prefect-gpu status --once", "what the devices do"),
        ("prefect-gpu down", "end all of it"),
    ]
    return _shown(steps)


def _with_slurm(pool: str) -> list[tuple[str, str]]:
    """From the files to a run, on a login node of the cluster."""
    ours = "PREFECT_INTEGRATIONS_GPU"
    return [
        ("sinfo", "which partitions there are: slurm.yaml names one"),
        ("prefect server start --host 0.0.0.0 --background", "if there is no server yet"),
        ("prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api", ""),
        (f"prefect work-pool create {quote(pool)} --type gpu", ""),
        ("prefect-gpu register slurm.yaml", "what Slurm is asked for"),
        (f"export {ours}_SLURM={quote(pool)} {ours}_CHANNEL_HOST=0.0.0.0", ""),
        (f"export {ours}_ADVERTISE=$(hostname)", "this machine, as the nodes reach it"),
        ("prefect-gpu doctor", "whether all of it fits together"),
        (f"prefect worker start --pool {quote(pool)}", "and in another terminal:"),
        ("prefect --no-prompt deploy --all", "the training as a deployment"),
        (f"prefect deployment run {quote(f'train/{pool}')} --watch", "one run of it"),
    ]


def _shown(steps: list[tuple[str, str]]) -> str:
    width = max(len(command) for command, _ in steps)
    return "\n".join(f"  {command:<{width}}  {'# ' + why if why else ''}".rstrip() for command, why in steps)
