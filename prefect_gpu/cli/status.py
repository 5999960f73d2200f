"""``prefect-gpu status``: what the pool does now, in the terminal; the same as on its page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_gpu.cli import common

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from pathlib import Path

_EVERY_S = 1.0
_TIMEOUT_S = 5.0
_SILENT_S = 60.0  # a worker that has left no word that it ends may be busy for so long


def status(
    pool: Annotated[str | None, typer.Option(help="Only this pool's worker.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs, once.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and do not follow it.")] = False,
) -> None:
    """Show what each device does, who prepares and waits at a gate, and who waits for a device and why.

    In a terminal it goes on until Ctrl-C. It asks the workers of this machine that use the same state folder; ends with
    code 1 if none answers.
    """
    folder = common.load_settings().resolved_state_dir / "pages"
    told = ask(folder, pool)
    if not told:
        fail_without(folder, pool)
    if as_json:
        common.print_json(told)
        return
    screen = common.console()
    if once or not screen.is_terminal:
        for one in told:
            screen.print(_drawn(one))
        return
    from rich.console import Group
    from rich.live import Live

    from prefect_gpu.page.server import pages

    def view(told: list[dict[str, Any]]) -> Group:
        return Group(*map(_drawn, told))

    try:
        with Live(view(told), console=screen, screen=True, auto_refresh=False) as live:
            heard = time.monotonic()
            while told or (pages(folder, pool) and time.monotonic() - heard < _SILENT_S):
                if told:
                    heard = time.monotonic()
                    live.update(view(told), refresh=True)
                time.sleep(_EVERY_S)
                told = ask(folder, pool)
    except KeyboardInterrupt:
        return
    if pages(folder, pool):
        fail_without(folder, pool)
    common.fail("The worker has ended.")


def _drawn(told: dict[str, Any]) -> Any:
    from rich.text import Text

    from prefect_gpu.cli.status_view import screen_of

    try:
        return screen_of(told)
    except (KeyError, TypeError, IndexError):
        return Text(
            f"Pool {told['pool']}: its worker is of another version than this command, which cannot show what it "
            f"tells. Its page can: {told['url']}"
        )


def fail_without(folder: Path, pool: str | None) -> None:
    """Say why there is nothing to show, and end with code 1."""
    from prefect_gpu.page.server import pages, unreadable

    of = f" of pool {pool!r}" if pool else ""
    if silent := [page["url"] for page in pages(folder, pool)]:
        common.fail(
            f"No worker{of} answers. One has left a note of its page, {silent[0]}, which has not answered for "
            f"{_TIMEOUT_S:.0f} s. If that worker was killed, start it again; if this machine is busy, try again."
        )
    if closed := unreadable(folder):
        common.fail(
            f"No worker{of} answers whose page this user may know of: {closed} cannot be read, where workers leave "
            "notes of their pages. Ask as the user of the worker."
        )
    common.fail(
        f"No worker{of} answers. Its page is looked for in {folder}. Start a worker (prefect worker start --pool "
        f"{pool or 'NAME'}), use the PREFECT_INTEGRATIONS_GPU_STATE_DIR that it uses, and leave "
        "PREFECT_INTEGRATIONS_GPU_PAGE on."
    )


def ask(folder: Path, pool: str | None) -> list[dict[str, Any]]:
    """What the workers tell; one that was killed has left a note, but does not answer."""
    import httpx

    from prefect_gpu.page.server import pages

    told = []
    with httpx.Client(trust_env=False, timeout=_TIMEOUT_S) as client:
        for page in pages(folder, pool):
            try:
                shown = {"Authorization": f"Bearer {page['token']}"} if "token" in page else {}
                answer = client.get(f"{page['url']}/api/overview", headers=shown)
                found = answer.raise_for_status().json()
            except (httpx.HTTPError, httpx.InvalidURL, ValueError):
                continue
            # Somebody else may listen by now where a killed worker did.
            if isinstance(found, dict) and found.get("pool") == page["pool"]:
                told.append({"url": page["url"], **found})
    return told


def served_devices(state_dir: Path) -> list[dict[str, Any]]:
    """The devices of all workers of a state folder, as they tell of them; see :func:`prefect_gpu.runtime.overview`."""
    return [device for one in ask(state_dir / "pages", None) for device in one["devices"]]


def left_alone(devices: Iterable[Mapping[str, Any]], filed: Container[str]) -> dict[str, str]:
    """The programs outside the pool that have a device for now, by device, where no file takes it out of service.

    Args:
        devices: As :func:`served_devices` gives them.
        filed: Those that the file of cordons has.
    """
    return {str(one["id"]): str(one["outside"]) for one in devices if one.get("outside") and one["id"] not in filed}
