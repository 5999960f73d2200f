"""``prefect-gpu doctor``: what was found, what is missing, and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from prefect_gpu.cli import common


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Check this machine and its Prefect set-up, and say in plain words what is found and what is missing.

    Ends with code 0 if runs can work here, 1 if something stands in the way.
    """
    from prefect_gpu.cli.checks import check_everything

    examined = check_everything()
    errors = sum(finding.level == "error" for finding in examined.findings)
    warnings = sum(finding.level == "warning" for finding in examined.findings)
    if as_json:
        common.print_json({"ok": not errors, "findings": examined.findings, "node": examined.node})
        raise typer.Exit(int(bool(errors)))

    screen = common.console()
    common.print_findings(screen, examined.findings)
    screen.print()
    if errors:
        screen.print(f"[bold red]Not ready:[/] {common.plural(errors, 'error')}, {common.plural(warnings, 'warning')}.")
    elif warnings:
        screen.print(f"[bold green]Ready[/], with {common.plural(warnings, 'warning')}.")
    else:
        screen.print("[bold green]Ready.[/]")
    raise typer.Exit(int(bool(errors)))
