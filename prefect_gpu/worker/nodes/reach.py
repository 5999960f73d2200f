"""How runs on other machines reach this one, and Prefect's server: at an address that they know, or by a tunnel."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from prefect_gpu.worker.setup_error import SetupError

if TYPE_CHECKING:
    from prefect_gpu.blocks.slurm import SlurmTunnel
    from prefect_gpu.runtime.drivers.slurm.words import Tunnel
    from prefect_gpu.settings import GpuSettings

_HERE = ("localhost", "127.0.0.1", "0.0.0.0", "::1")


def seen_from_outside(url: str, address: str | None) -> str:
    """A URL of this machine, as others must call it; one of another machine stays as it is.

    Example:
        >>> seen_from_outside("http://127.0.0.1:4200/api", "10.0.0.1")
        'http://10.0.0.1:4200/api'
    """
    parts = urlsplit(url)
    if address is None or parts.hostname not in _HERE:
        return url
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{address}{port}"))


def tunnel_of(tunnel: SlurmTunnel, settings: GpuSettings, api: str | None) -> Tunnel:
    """What the driver is told of a block's tunnel.

    Args:
        api: ``PREFECT_API_URL``; None: there is no server.

    Raises:
        SetupError: The server would be reached by a name that its certificate is not for.
    """
    from prefect_gpu.runtime.drivers.slurm.reach import at
    from prefect_gpu.runtime.drivers.slurm.words import Tunnel

    told = seen_from_outside(api or "", settings.advertise)
    target = tunnel.server
    if not target and urlsplit(told).hostname in (*_HERE, settings.advertise, socket.gethostname(), socket.getfqdn()):
        target = at(told if tunnel.opened_by == "node" else api or "")
    if target and urlsplit(told).scheme == "https":
        raise SetupError(
            f"tunnel: PREFECT_API_URL={api!r} cannot be led through it, as the server's certificate is for another "
            "name than 127.0.0.1. Give the worker an address of the server without TLS: ssh encrypts all that it leads."
        )
    return Tunnel(
        via=tunnel.via,
        opened_by=tunnel.opened_by,
        options=tuple(tunnel.ssh_options),
        targets=("", "", target),
        server=at(told),
    )
