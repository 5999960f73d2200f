"""Throughput by GPUs, by placement, by GPU kind, by cores, and by pair, on published tables.

Each table is fitted from a few of its measurements and asked for the others. Which few is a fixed rule, and where a
prior from other programs is used, no measurement of the program itself is in it.

    from benchmarks.estimation_public import claims_and_tables

The tables are public: pkusys/ElasticFlow (throughput tables, Pollux traces), msr-fiddle/synergy,
stanford-futuredata/gavel and gajagajago/deepshare.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks._claims import Claim, at_most
from benchmarks.estimation_public.cores import by_cores
from benchmarks.estimation_public.gpus import RULE, by_gpus, by_kind, by_placement, shown
from benchmarks.estimation_public.pairs import by_pair

MEDIAN_ERROR = 0.10


def claims_and_tables(traces: Path, quick: bool = False) -> tuple[list[Claim], dict[str, Any]]:
    """All of it.

    Args:
        traces: Folder of the published tables.
        quick: Fewer draws, fewer rules.

    Returns:
        The claims, and for each table its figures.
    """
    gpus = by_gpus(traces / "pkusys-ElasticFlow", quick)
    ours = gpus["rules"][shown(RULE)]
    claims = [
        at_most("throughput, each curve alone from 3 GPU counts: median error", ours["alone"]["median"], MEDIAN_ERROR),
        at_most("throughput, with other programs: median error", ours["with_others"]["median"], MEDIAN_ERROR),
    ]
    tables = {
        "throughput_by_gpus": gpus,
        "throughput_by_placement": by_placement(traces / "pkusys-ElasticFlow" / "pollux_traces", quick),
        "throughput_by_kind": by_kind(traces / "stanford-futuredata-gavel"),
        "throughput_by_cores": by_cores(traces / "msr-fiddle-synergy" / "cpu_mem_sensitivity.csv"),
        "contention_by_pair": by_pair(traces, quick),
    }
    return claims, tables
