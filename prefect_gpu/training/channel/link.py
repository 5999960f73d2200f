"""The one connection between this process and the controller, shared by every training run in the process."""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from prefect_gpu.training.channel.mailbox import Mailbox
from prefect_gpu.training.forks import end_children_well
from prefect_gpu.training.limits.caps import Caps, own_caps
from prefect_gpu.training.limits.device_lock import DeviceLock, own_lock
from prefect_gpu.training.protocol import ENV_CHANNEL, ENV_CHANNEL_FILE, ENV_DEVICES, ENV_GATED, ENV_RUN_ID, ENV_TOKEN

if TYPE_CHECKING:
    from prefect_gpu.training.channel.client import ChannelClient

logger = logging.getLogger("prefect_gpu.training")

EXIT_FLUSH_SECONDS = 2.0  # what the end of the process, or of saving(), may wait for a slow controller
HEARD_OF_SECONDS = 5.0  # what a failure may wait for the controller, which may have given this process up
GATE_PATIENCE_SECONDS = 60.0  # how long a gated run waits for a controller that it cannot reach


class Owner(Protocol):
    """The training run that a link serves."""

    _ended: bool
    _tries: Mapping[Hashable, int]

    def _give_up(self) -> None: ...

    def _detach(self) -> None: ...


class Link:
    """A channel client, the instructions that came through it, the devices, and the run that it currently serves.

    Attributes:
        exhausted: Whether a try has run out of memory, so that the next one needs the devices alone.
    """

    def __init__(self, client: ChannelClient, mailbox: Mailbox, lock: DeviceLock, caps: Caps) -> None:
        self.client = client
        self.mailbox = mailbox
        self.lock = lock
        self.caps = caps
        self.exhausted = False
        self.owner: Owner | None = None


_lock = threading.Lock()
_link: Link | None = None
_fork_hook_registered = False


def process_link(environ: Mapping[str, str] = os.environ) -> Link | None:
    """This process's link to its controller, connecting in the background; None outside the pool.

    The first call starts the channel's thread; later calls return the same link.
    """
    global _link, _fork_hook_registered
    run_id, token = environ.get(ENV_RUN_ID), environ.get(ENV_TOKEN)
    if not run_id or not token or not (environ.get(ENV_CHANNEL) or environ.get(ENV_CHANNEL_FILE)):
        return None
    with _lock:
        if _link is None or _link.client.run_id != run_id:
            from prefect_gpu.training.channel.client import ChannelClient
            from prefect_gpu.training.limits.usage import UsageSampler

            if _link is not None:  # this process has become another run
                _link.client.close(EXIT_FLUSH_SECONDS)
            mailbox = Mailbox(gated=environ.get(ENV_GATED) == "1")
            url, file = environ.get(ENV_CHANNEL), environ.get(ENV_CHANNEL_FILE)
            devices = _devices(environ.get(ENV_DEVICES))
            client = ChannelClient(
                run_id,
                token,
                lambda: channel_url(url, file),
                mailbox.put,
                UsageSampler(devices),
                end_superseded,
            )
            client.start()
            atexit.register(client.close, EXIT_FLUSH_SECONDS)
            _at_the_end_of_a_child(client)
            if not _fork_hook_registered:
                _fork_hook_registered = True
                os.register_at_fork(after_in_child=_forget)
                end_children_well()
            _link = Link(client, mailbox, own_lock(environ), own_caps(environ, devices))
        return _link


def _at_the_end_of_a_child(client: ChannelClient) -> None:
    """Flush what a child of ``multiprocessing`` has reported, too: it ends without a look at ``atexit``."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(client, client.close, args=(EXIT_FLUSH_SECONDS,), exitpriority=0)


def end_superseded() -> None:
    """End this process: its node was lost, so that its run goes on elsewhere. Two must not save for one run."""
    logger.error("The controller has given this process up: its run goes on elsewhere, or is over. It ends.")
    os.kill(os.getpid(), signal.SIGKILL)


def channel_url(url: str | None, file: str | None) -> str | None:
    """Where the controller listens now: the file knows best, because every new worker writes it again."""
    if file:
        try:
            written = json.loads(Path(file).read_text())["url"]
            if isinstance(written, str):
                return written
        except (OSError, ValueError, KeyError, TypeError):
            pass
    return url


def wait_at_gate(link: Link, patience: float = GATE_PATIENCE_SECONDS) -> None:
    """Wait until the controller opens the gate.

    A controller that can be reached is waited for without end: it knows when the device is free. One that cannot be
    reached is waited for ``patience`` seconds; then the run goes on by itself as soon as its devices are free, which
    their locks tell (:mod:`~prefect_gpu.training.limits.device_lock`). They tell a second process of the run, too, to
    which the controller does not speak: it trains as soon as the first one does. Those of a shared device tell nothing.
    """
    while not link.mailbox.gate.wait(min(1.0, patience / 4)):
        if link.client.second and not link.lock.shared:
            return
        broken = link.client.broken_seconds()
        if broken > patience:
            logger.warning(
                "The controller has been out of reach for %.0f s (%s): training starts as soon as the device is free.",
                broken,
                link.client.refused or "its worker may have ended",
            )
            return


def wait_alone(link: Link) -> None:
    """Wait until nobody else trains on the devices, and take all of their memory: a try before has run out of it."""
    link.lock.shared = False
    link.lock.acquire()
    link.caps.lift()
    link.exhausted = False


def _devices(text: str | None) -> list[dict[str, Any]]:
    try:
        devices = json.loads(text or "[]")
        return [device for device in devices if isinstance(device, dict)]
    except (ValueError, TypeError):
        logger.warning("%s is no JSON list of devices; GPU usage is not measured.", ENV_DEVICES)
        return []


def _forget() -> None:
    """In a forked child: threads are not inherited, and the connection is the parent's."""
    global _link, _lock
    _lock = threading.Lock()
    link, _link = _link, None
    if link is not None:
        link.client.abandon()
        if link.owner is not None:
            link.owner._detach()
