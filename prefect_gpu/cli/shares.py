"""``prefect-gpu shares``: what each owner of a pool is promised, has, has had, and may expect."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from prefect_gpu.cli import common
from prefect_gpu.cli.status import ask, fail_without

_WIDE = 120  # columns of a terminal


def shares(
    pool: Annotated[str | None, typer.Option(help="Only this pool's worker.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Show how a pool is divided among the owners of its runs: what each is guaranteed, holds, is owed, and has had.

    It asks the workers of this machine that use the same state folder; ends with code 1 if none answers, or if none
    divides its pool (the setting quota).
    """
    folder = common.load_settings().resolved_state_dir / "pages"
    told = ask(folder, pool)
    if not told:
        fail_without(folder, pool)
    divided = [one for one in told if one.get("shares")]
    if as_json:
        common.print_json([{"pool": one["pool"], **(one.get("shares") or {"rows": []})} for one in told])
        raise typer.Exit(int(not divided))
    if not divided:
        common.fail(
            "No pool is divided here: all runs are alike. Register a block of the type gpu-quota, and name it to the "
            "worker as PREFECT_INTEGRATIONS_GPU_QUOTA."
        )
    screen = common.console()
    for one in divided:
        screen.print(_table(one, wide=screen.width >= _WIDE))


def _table(told: dict[str, Any], *, wide: bool) -> Any:
    """Of one pool; what is lent and borrowed only where there is room."""
    from rich.text import Text

    from prefect_gpu.reporting.tables import FIGURES, WHOLE, WORDS, each, plain_table
    from prefect_gpu.units import format_seconds

    divided = told["shares"]
    counts_half = format_seconds(divided["half_life_s"])
    table = plain_table(
        ("Owner", WHOLE),
        *each(FIGURES, "Guaran-\nteed", "Limit", "Weight", "Holds", "Waits\nfor", "Owed\nnow", "Had of\nowed"),
        *each(FIGURES, *(("Lent", "Bor-\nrowed") if wide else ())),
        ("What it may expect", {**WORDS, "min_width": 12}),
        leave_out=("Weight", "Limit", "Had of owed", "Owed now", "Guaranteed"),
        title=Text(f"\nPool {told['pool']}: {common.plural(divided['devices'], 'device')}, half-life {counts_half}"),
        title_justify="left",
        title_style="bold",
    )
    for row in divided["rows"]:
        lent = [_number(row["lent"]), _number(row["borrowed"])] if wide else []
        table.add_row(
            Text("  " * row["depth"] + row["name"] + (":" if row["is_group"] else "")),
            _number(row["guaranteed"]),
            "–" if row["limit"] is None else f"{row['limit']}",
            _number(row["weight"]),
            _number(row["holds"]),
            _number(row["waits"]),
            _number(row["owed"]),
            f"{row['had_part']:.0%} of {row['owed_part']:.0%}",
            *lent,
            Text(row["expects"]),
        )
    return table


def _number(value: float) -> str:
    return f"{value:.3g}" if value else "–"
