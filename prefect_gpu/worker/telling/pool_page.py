"""The pool's own page, as the worker serves it: started beside the controller, and linked from Prefect."""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.utilities.urls import url_for

from prefect_gpu.page.app import Metrics
from prefect_gpu.page.server import PageServer
from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.overview import details, overview
from prefect_gpu.scheduling.forecast import Outlook
from prefect_gpu.worker.deadlines.asked_before import could_be_promised

if TYPE_CHECKING:
    from prefect_gpu.runtime.controller import Controller
    from prefect_gpu.settings import GpuSettings


class PoolSource:
    """Tells the page what the controller knows. Implements :class:`prefect_gpu.page.app.Source`.

    Args:
        expected: What is expected of a waiting run; None: nothing is known.
        unwell: What of the worker is not well, and who is away.
        settings: The worker's, which say how much a run may ask for.
    """

    def __init__(
        self,
        controller: Controller,
        pool: str,
        expected: Callable[[str], Outlook | None],
        unwell: Callable[[], list[str]],
        settings: GpuSettings,
    ) -> None:
        self._controller, self._pool, self._expected, self._unwell = controller, pool, expected, unwell
        self._settings = settings

    def overview(self, since: int, queue_from: int | None = None) -> dict[str, Any]:
        """See :func:`prefect_gpu.runtime.overview.overview`; with the ``pool``, ``ahead_s``, ``unwell``, ``prefect``.

        The first is its name. The second is how far all times are ahead of the machine's clock, in seconds: it may have
        been set. The third are sentences on what is not well. The last is what in Prefect's UI leads to the ``pool``,
        and to a ``run``, where ``{id}`` stands for its id; None: it is not known where that is.
        """
        told = overview(self._controller, CLOCK(), since=since, queue_from=queue_from, expected=self._expected)
        links = {"pool": url_for("work-pool", obj_id=self._pool), "run": _link_of_runs()}
        return {"pool": self._pool, "ahead_s": CLOCK.ahead_s, "unwell": self._unwell(), "prefect": links, **told}

    def details(self, number: int) -> dict[str, Any] | None:
        """See :func:`prefect_gpu.runtime.overview.details`; with the run's page in Prefect, if there is one."""
        told = details(self._controller, number, CLOCK())
        return None if told is None else {**told, "prefect": url_for("flow-run", obj_id=told["id"])}

    def promise(self, asked: dict[str, Any]) -> dict[str, Any]:
        """See :func:`.could_be_promised`."""
        return could_be_promised(self._controller, asked, self._settings)


def _link_of_runs() -> str | None:
    nobody = UUID(int=0)
    link = url_for("flow-run", obj_id=nobody)
    return link.replace(str(nobody), "{id}") if link else None


async def open_page(
    source: PoolSource,
    settings: GpuSettings,
    pool: str,
    metrics: Metrics,
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger],
) -> PageServer | None:
    """Serve the page; None if it is switched off, or cannot be served. Runs do not need it: that is only a warning."""
    if not settings.page:
        return None
    note = note_of(settings.resolved_state_dir, pool)
    page = PageServer(
        source,
        host=settings.page_host,
        port=settings.page_port,
        note=note,
        pool=pool,
        token=token_of(settings),
        metrics=metrics,
    )
    try:
        await page.start()
    except OSError as error:
        logger.warning(
            "The pool's page cannot be served at %s:%d (%s). Set PREFECT_INTEGRATIONS_GPU_PAGE_HOST to an address of "
            "this machine, or PREFECT_INTEGRATIONS_GPU_PAGE=false.",
            settings.page_host,
            settings.page_port,
            error.strerror or error,
        )
        return None
    if page.unnoted is not None:
        logger.warning(
            "`prefect-gpu status` will not find this worker, as %s cannot be written: %s. See to that, and start the "
            "worker again.",
            note,
            page.unnoted.strerror or page.unnoted,
        )
    return page


def token_of(settings: GpuSettings) -> str:
    """What readers of the page must know; empty: nothing. One that the worker has made stays the same."""
    if settings.page_token is not None:
        return settings.page_token.get_secret_value()
    if _is_loopback(settings.page_host):
        return ""
    file = settings.resolved_state_dir / "page-token"
    with suppress(OSError):
        if kept := file.read_text().strip():  # a power loss may have left it empty
            return kept
    token, making = secrets.token_urlsafe(24), file.with_suffix(".tmp")
    with suppress(OSError):  # a full disk: then the next worker makes another
        making.unlink(missing_ok=True)
        making.touch(0o600)
        making.write_text(token)
        making.replace(file)
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def note_of(state_dir: Path, pool: str) -> Path:
    """The file that tells ``prefect-gpu status`` where the page of a pool is."""
    return state_dir / "pages" / f"{pool}.json"
