"""A driver that several pools use, one after another."""

from __future__ import annotations

import logging

from prefect_gpu.runtime.drivers.process import ProcessDriver


class WarmDriver(ProcessDriver):
    """The process driver, with one warm interpreter for all pools of a benchmark.

    A context manager. A pool that closes it only lets go of its runs.

    Args:
        preload: Modules that the interpreter imports before anything is measured.
    """

    def __init__(self, *preload: str, logger: logging.Logger) -> None:
        super().__init__(warm=True, preload=preload, logger=logger)

    async def __aenter__(self) -> WarmDriver:
        await self.start()
        assert self._warm is not None
        await self._warm._settled.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().close()

    async def close(self) -> None:
        """See the base class. The interpreter stays."""
        for handle in tuple(self._handles):
            handle.release()
