"""What owners are promised, as a block of Prefect's says, which may change while the worker serves."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from prefect_gpu.blocks import GpuQuota
from prefect_gpu.blocks.base import BlockError
from prefect_gpu.scheduling.model.shares import Shares
from prefect_gpu.settings import GpuSettings
from prefect_gpu.units import plural
from prefect_gpu.worker.from_blocks import read_quota

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

_READ_AGAIN_S = 10.0


class QuotaReader:
    """Reads the block that the setting ``quota`` names, again and again.

    Attributes:
        trouble: What is wrong with it now, for people; empty: nothing.
    """

    def __init__(
        self,
        client: PrefectClient,
        settings: GpuSettings,
        logger: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._client, self._settings, self._logger = client, settings, logger
        self._quota: GpuQuota | None = None
        self._read_at = float("-inf")
        self.trouble = ""

    async def read(self) -> None:
        """Read it now.

        Raises:
            BlockError: There is no such block, or it cannot be used.
        """
        self._quota = await read_quota(self._settings, self._client)
        self._read_at = time.monotonic()

    async def shares(self, devices: int) -> Shares | None:
        """What owners are promised; None: nothing is.

        A block that cannot be used any more leaves everything as it was, and people are told.

        Args:
            devices: How many the pool has now.
        """
        if self._settings.quota and time.monotonic() >= self._read_at + _READ_AGAIN_S:
            try:
                await self.read()
                self._say(self._too_much(devices))
            except BlockError as error:
                self._read_at = time.monotonic()
                self._say(f"{error} Until then, owners are promised what they were.")
        return None if self._quota is None else self._quota.as_shares()

    def _too_much(self, devices: int) -> str:
        """Devices may be away: this is no reason not to serve."""
        promised = 0 if self._quota is None else self._quota.guaranteed
        if promised <= devices:
            return ""
        named = f"quota={self._settings.quota!r}"
        return (
            f"{named} guarantees {plural(promised, 'device')}, and the pool has {devices} now: while that "
            "is so, each gets a part of what is guaranteed to it. Lower the guarantees, or bring devices back."
        )

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            self._logger.warning("%s", trouble)
        self.trouble = trouble
