"""``prefect-gpu simulate --world fgd``: pods that never leave, on nodes of which each has devices of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prefect_gpu.cli import common
from prefect_gpu.cli.simulate_words import in_words_of_options, progress, show, unread


def place_pods(
    trace: Path,
    tables: Path | None,
    profile: str,
    knowledge: str,
    seed: int,
    limit: int | None,
    given: Mapping[str, object],
    *,
    as_json: bool,
) -> None:
    """Place the pods of a workload, and say how much was allocated.

    Args:
        given: What else the user has said by option; of these, nothing belongs into this world.
    """
    from prefect_gpu.papers.fgd.simulation import read_workload, simulate_fgd

    for option, value in given.items():
        if value:
            shown = "" if value is True else f" {value:g}" if isinstance(value, float) else f" {value}"
            common.fail(f"{option}{shown} does not belong into --world fgd: leave it out.", code=2)
    if tables is None:
        common.fail("--world fgd needs --tables DIR: name the folder of its nodes and arrivals.", code=2)
    try:
        workload = read_workload(trace, tables, seed)
        arriving = workload.arriving[:limit]
        with progress(len(arriving), shown=not as_json) as advance:
            results = simulate_fgd(workload, profile, knowledge, limit=limit, progress=advance)
    except FileNotFoundError as missing:
        common.fail(f"{missing.filename} does not exist: name --trace FILE and --tables DIR of FGD's pods.", code=2)
    except (OSError, ValueError) as wrong:
        common.fail(in_words_of_options(unread(wrong)), code=2)
    if as_json:
        common.print_json(results.summary())
    else:
        nodes = "1 node" if (count := len(workload.machines)) == 1 else f"{count:,} nodes"
        show(results, f"{trace.name} on {nodes}, profile {profile}, pods {knowledge}")
