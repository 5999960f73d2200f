"""A run of the process driver whose folder's disk is full."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from prefect_gpu.runtime.drivers.base import Driver
from prefect_gpu.runtime.drivers.process import ProcessDriver
from tests.runtime.drivers.full_disk import FullDisk


class TestProcesses(FullDisk):
    @pytest.fixture
    async def driver(self) -> AsyncIterator[Driver]:
        driver = ProcessDriver(warm=False, echo=lambda label, line: None, logger=logging.getLogger("test.full"))
        yield driver
        await driver.close()
