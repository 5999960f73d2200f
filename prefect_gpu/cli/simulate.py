"""``prefect-gpu simulate``: a trace of jobs through the scheduler, on a cluster of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefect_gpu.cli import common
from prefect_gpu.cli.simulate_pods import place_pods
from prefect_gpu.cli.simulate_words import in_words_of_options, progress, show, some, unread

if TYPE_CHECKING:
    from prefect_gpu.papers.from_trace import Selection
    from prefect_gpu.simulation.knowledge import Knowledge
    from prefect_gpu.simulation.results import Results
    from prefect_gpu.simulation.traces import TraceJob

_MOST_DEVICES = 1_000_000
_TABLES = {"pollux": "models", "shockwave": "jobs", "elasticflow": "models"}  # worlds that need tables: of what


def simulate(
    trace: Annotated[Path, typer.Option(metavar="FILE", help="The trace: one job per line, gzipped or not.")],
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes of the cluster; the world fgd has nodes of its own.")
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="Devices of each node.")] = None,
    trace_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Format of the trace: muri, tiresias, neutral, philly, elasticflow, chronus, openb, deepshare, gavel.",
            show_default="guessed",
        ),
    ] = None,
    profile: Annotated[str, typer.Option(help="Name of the scheduling profile.")] = "adaptive",
    knowledge: Annotated[
        str,
        typer.Option(
            help="What the scheduler knows about durations: exact, learned (from the jobs that ended before), or none. "
            "In the world fgd, about the pods that will come."
        ),
    ] = "exact",
    error: Annotated[
        float,
        typer.Option(min=0, help="Size of random errors of exact durations: with 0.3, two in three are within 35 %."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of those errors; in the world fgd, of the arrivals.")] = 0,
    world: Annotated[
        str,
        typer.Option(
            help="cluster; or the rules of another simulator, to compare with published figures: muri, pollux (elastic "
            "jobs; profiles adaptive, tiresias, optimus), shockwave (batch sizes that change; profiles adaptive, "
            "srtf, and the published schedules), elasticflow (deadlines; profiles adaptive, edf), or fgd (pods with "
            "parts of GPUs that never leave; profiles adaptive, fgd, bestfit)."
        ),
    ] = "cluster",
    tables: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of what was measured, which the worlds pollux, shockwave and elasticflow need, or of the "
            "nodes and arrivals of the world fgd.",
        ),
    ] = None,
    sharing: Annotated[
        bool, typer.Option("--sharing", help="Let jobs share devices at the pace that Muri's model gives them.")
    ] = False,
    restart_cost: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="What a stopped job loses when it starts again.")
    ] = 0.0,
    limit: Annotated[int | None, typer.Option(min=1, max=2**31, help="Number of jobs, the first of the trace.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw completion times, devices and queue into this PNG (needs matplotlib)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object for programs.")] = False,
) -> None:
    """Run the jobs of a trace through a scheduling profile, on a simulated cluster of equal nodes.

    Jobs that the cluster can never hold are left out, and named on standard error. Ends with code 1 if any other job
    never ended.
    """
    from prefect_gpu.papers.from_trace import check, select, simulate
    from prefect_gpu.papers.unsuitable import Unsuitable
    from prefect_gpu.scheduling.profiles import get_profile

    if world == "fgd":
        given: dict[str, object] = {"--nodes": nodes, "--gpus-per-node": gpus_per_node, "--format": trace_format}
        given |= {"--error": error, "--sharing": sharing, "--restart-cost": restart_cost, "--plot": plot}
        place_pods(trace, tables, profile, knowledge, seed, limit, given, as_json=as_json)
        return
    if nodes is None or gpus_per_node is None:
        missing = "--nodes" if nodes is None else "--gpus-per-node"
        common.fail(f"--world {world} needs {missing}: say how large the cluster is.", code=2)
    if nodes * gpus_per_node > _MOST_DEVICES:
        common.fail(
            f"--nodes {nodes} with --gpus-per-node {gpus_per_node} are over {_MOST_DEVICES:,} devices: ask for fewer.",
            code=2,
        )
    if plot is not None:
        _check_plot(plot)
    try:
        known = _knowledge(knowledge, error, seed)
        if world not in _TABLES:
            get_profile(profile)
        check(world, restart_cost, sharing)
        _check_tables(world, tables, knowledge, error, trace_format)
        devices = 2**31 if world == "elasticflow" else nodes * gpus_per_node  # there, no job has a fixed size
        found = select(_read(trace, world, trace_format, limit), devices)
    except ValueError as wrong:
        common.fail(in_words_of_options(str(wrong)), code=2)
    _tell_left_out(found, nodes * gpus_per_node)
    if not found.jobs:
        common.fail(f"{trace}: no job of it can run on this cluster. Name another trace, or a larger cluster.")
    with progress(len(found.jobs), shown=not as_json) as advance, common.deciding(profile):
        try:
            results = simulate(
                found.jobs,
                profile,
                nodes=nodes,
                gpus_per_node=gpus_per_node,
                knowledge=known,
                world=world,
                tables=tables,
                restart_cost_s=restart_cost,
                sharing=sharing,
                keep_timeline=plot is not None,
                progress=advance,
            )
        except (OSError, Unsuitable) as wrong:
            common.fail(in_words_of_options(unread(wrong)), code=2)
    if as_json:
        common.print_json(results.summary())
    else:
        each = common.plural(gpus_per_node, "device")
        title = f"{trace.name} on {nodes} × {each}, profile {profile}, durations {knowledge}"
        show(results, title)
    if plot is not None:
        _draw(results, plot, nodes, gpus_per_node, f"{trace.name} under {profile}", quiet=as_json)
    if results.unfinished:
        common.fail(
            f"{common.plural(len(results.unfinished), 'job')} never ended under profile={profile!r} "
            f"({some(results.unfinished)}); the figures leave them out. Choose another profile or a larger cluster."
        )


def _knowledge(name: str, error: float, seed: int) -> Knowledge:
    from prefect_gpu.simulation.knowledge import KNOWLEDGE, Exact

    if name not in KNOWLEDGE:
        common.fail(f"--knowledge {name} is none of {', '.join(KNOWLEDGE)}.", code=2)
    if name == "exact":
        return Exact(error, seed)
    if error:
        common.fail(f"--error {error:g} needs --knowledge exact, not {name}: leave one of them out.", code=2)
    return KNOWLEDGE[name]()


def _check_tables(world: str, tables: Path | None, knowledge: str, error: float, trace_format: str | None) -> None:
    if world not in _TABLES:
        if tables is not None:
            common.fail(f"--tables {tables} does not belong into --world {world}: leave it out.", code=2)
        return
    if tables is None:
        what = _TABLES[world]
        common.fail(f"--world {world} needs --tables DIR: name the folder of what was measured of its {what}.", code=2)
    for given, option in (
        (error, f"--error {error:g}"),
        (trace_format, f"--format {trace_format}"),
        (world != "pollux" and knowledge != "exact", f"--knowledge {knowledge}"),
    ):
        if given:
            common.fail(f"{option} does not belong into --world {world}: leave it out.", code=2)


def _read(path: Path, world: str, trace_format: str | None, limit: int | None) -> Iterator[TraceJob]:
    from itertools import islice

    from prefect_gpu.papers.pollux.workloads import read_workload
    from prefect_gpu.papers.shockwave.tables import read_jobs
    from prefect_gpu.simulation.traces import read_trace

    try:
        readers: dict[str, Callable[[Path], Iterable[TraceJob]]] = {
            "pollux": read_workload,
            "shockwave": read_jobs,
            "elasticflow": lambda path: read_trace(path, "elasticflow"),
        }
        jobs = readers[world](path) if world in readers else read_trace(path, trace_format)
        yield from islice(jobs, limit)
    except FileNotFoundError:
        common.fail(f"--trace {path} does not exist. Name the file of a trace.", code=2)
    except OSError as error:
        common.fail(f"--trace {path} cannot be read: {error.strerror}. Name a file that this user may read.", code=2)


def _check_plot(path: Path) -> None:
    """Find out now what would be a pity to find out after a long simulation."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        common.fail("--plot needs matplotlib, which is not installed: pip install 'prefect-gpu[plot]'")
    if not path.absolute().parent.is_dir():
        common.fail(f"--plot {path} cannot be written: {path.absolute().parent} is no folder. Create it first.", code=2)
    if path.suffix.lower() != ".png":
        common.fail(f"--plot {path} is no PNG: give a name that ends in .png.", code=2)


def _tell_left_out(found: Selection, devices: int) -> None:
    for jobs, what in (
        (found.too_large, f"more than the {common.plural(devices, 'device')} of this cluster"),
        (found.without_gpu, "no device"),
    ):
        if jobs:
            count = "1 job that asks" if len(jobs) == 1 else f"{len(jobs)} jobs that ask"
            typer.echo(f"Left out: {count} for {what} ({some([job.job_id for job in jobs])}).", err=True)


def _draw(results: Results, path: Path, nodes: int, gpus_per_node: int, title: str, *, quiet: bool) -> None:
    from prefect_gpu.papers.from_trace import cluster
    from prefect_gpu.reporting.simulated import write_simulation_png

    with common.writing(path):
        write_simulation_png(results, cluster(nodes, gpus_per_node), path, title=title)
    if not quiet:
        typer.echo(f"Wrote {path}.")
