"""``prefect-gpu train-policy``: train a contention-aware policy as DeepShare's paper does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_gpu.cli import common

if TYPE_CHECKING:
    from prefect_gpu.papers.deepshare.learning.train import Settings, Trained
    from prefect_gpu.simulation.traces import ContentionTable


def train_policy(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the weights; FILE ends in .npz.")],
    mix: Annotated[str, typer.Option(help="Models of the job sets: normal, heavy, medium or low.")] = "normal",
    w1: Annotated[
        float, typer.Option(help="Weight of contention in the reward, 0 to 1; the rest weighs utilisation.")
    ] = 0.4,
    seed: Annotated[int, typer.Option(help="The same seed and versions give the same policy.")] = 0,
    episodes: Annotated[int, typer.Option(help="Episodes, one job set each.")] = 200,
    sets: Annotated[int, typer.Option(help="Different job sets.")] = 10,
    jobs: Annotated[int, typer.Option(help="Jobs of a set.")] = 256,
    gamma: Annotated[float, typer.Option(help="Discount of a step's reward against the one before.")] = 0.9,
    caution: Annotated[
        float,
        typer.Option(help="Added to the score of starting nothing, once trained: above 0 more GPUs are left idle."),
    ] = 0.0,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder `jobs` with measured tables; without it contention is predicted."),
    ] = None,
    unseen: Annotated[int, typer.Option(help="Job sets to score it on afterwards, none of them trained on.")] = 3,
) -> None:
    """Train a policy on simulated rounds of a cluster of 4 × 8 GPUs, and score it on unseen job sets.

    Beside FILE, a file of the same name that ends in .json says how it was trained: settings, versions, learning curve
    and scores. Both are also written after each look at the validation sets, so an interrupted training leaves what it
    has learned. With matplotlib, one that ends in .png shows the learning curve.
    """
    if out.suffix != ".npz":
        common.fail(f"--out {out} does not end in .npz: give a name that does.", code=2)
    if not out.parent.is_dir():
        common.fail(f"--out {out} is in no folder that exists: create {out.parent} first.", code=2)
    if unseen < 1:
        common.fail(f"--unseen {unseen} is too few: give at least 1.", code=2)
    table = _table(tables)
    try:
        from prefect_gpu.papers.deepshare.learning.train import Settings
    except ImportError as error:
        common.fail(f"Training needs more packages ({error}). Install them: pip install 'prefect-gpu[rl]'")
    try:
        settings = Settings(mix, w1, seed, episodes, sets, jobs, gamma, caution)
    except ValueError as error:
        common.fail(str(error), code=2)
    trained = _train(settings, table, out)
    scores = _score(trained, table, settings, unseen)
    _write(trained, out, {"scores": scores, "table": "predicted" if tables is None else "measured"})
    screen = common.console()
    screen.print(f"Wrote {out} and {out.with_suffix('.json').name}.", markup=False)
    _draw(trained, out.with_suffix(".png"))
    screen.print(_report(scores))


def _table(tables: Path | None) -> ContentionTable:
    from prefect_gpu.papers.deepshare.contended import predicted_table
    from prefect_gpu.simulation.traces import TraceError, read_contention

    if tables is None:
        return predicted_table()
    try:
        return read_contention(tables)
    except TraceError as error:
        common.fail(f"--tables {tables} cannot be read: {error}", code=2)
    except OSError as error:
        common.fail(f"{error.filename} cannot be read: {error.strerror}. Name --tables DIR that has it.", code=2)


def _train(settings: Settings, table: ContentionTable, out: Path) -> Trained:
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from prefect_gpu.papers.deepshare.learning.train import train

    columns = (
        TextColumn("Training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task("", total=settings.episodes)

        def tell(one: dict[str, float]) -> None:
            said = f"reward {one['reward']:+.3f} a round, ratio {one['ratio']:.3f}, in use {one['used']:.3f}"
            # Of so many jobs: episodes that are stopped early count in part, as the training counts them.
            progress.update(task, advance=one["ended"] / settings.jobs, description=said)

        return train(settings, table, tell=tell, keep=lambda so_far: _write(so_far, out, {}))


def _score(trained: Trained, table: ContentionTable, settings: Settings, unseen: int) -> dict[str, Any]:
    from prefect_gpu.papers.deepshare.learning.evaluate import score, unseen_sets
    from prefect_gpu.papers.deepshare.shipped import content_of, policy_of

    policy = policy_of(content_of(trained.weights, trained.levels))
    job_sets = unseen_sets(settings.mix, unseen, settings.jobs)
    return {
        "deepshare-base": score(policy, job_sets, table),
        "deepshare-hybrid": score(policy, job_sets, table, with_rule=True),
    }


def _write(trained: Trained, out: Path, more: dict[str, Any]) -> None:
    """The two files, whole or not at all."""
    from prefect_gpu.papers.deepshare.shipped import content_of

    record = json.dumps(trained.record() | more, indent=1) + "\n"
    for path, content in (
        (out, content_of(trained.weights, trained.levels)),
        (out.with_suffix(".json"), record.encode()),
    ):
        part = path.with_name(path.name + ".part")
        with common.writing(path):
            part.write_bytes(content)
            part.replace(path)


def _draw(trained: Trained, path: Path) -> None:
    from prefect_gpu.reporting.figure import MissingLibrary
    from prefect_gpu.reporting.learning_png import write_learning_png

    try:
        write_learning_png(trained.record(), path)
    except (MissingLibrary, OSError) as error:
        common.console().print(f"No picture of the learning curve: {error}", markup=False)


def _report(scores: dict[str, Any]) -> Any:
    from prefect_gpu.reporting.tables import FIGURES, WORDS, each, plain_table

    columns = each(FIGURES, "running [s]", "completion [s]", "makespan [s]", "ratio", "in use")
    table = plain_table(("On unseen job sets", WORDS), *columns, gap=2)
    for name, one in scores.items():
        times = [f"{one[column]:,.0f}" for column in ("running_s", "completion_s", "makespan_s")]
        table.add_row(name, *times, f"{one['ratio']:.3f}", f"{one['used']:.3f}")
    return table
