"""A run of the docker driver whose folder's disk, on the worker's side, is full."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prefect_gpu.lab.checkout import IMAGE
from prefect_gpu.runtime.drivers.base import ContainerSpec, Driver
from prefect_gpu.runtime.drivers.docker import DockerDriver, Endpoint
from tests.runtime.drivers.full_disk import FullDisk


class TestContainers(FullDisk):
    @pytest.fixture
    async def driver(self, engine: Endpoint, tmp_path: Path) -> AsyncIterator[Driver]:
        default = ContainerSpec(IMAGE, volumes=(f"{tmp_path}:{tmp_path}",))
        logger = logging.getLogger("test.full")
        driver = DockerDriver(engine, default, pool="p", echo=lambda label, line: None, logger=logger)
        await driver.start()
        yield driver
        await driver.close()
