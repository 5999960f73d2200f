"""The page of a made-up pool, served as the worker serves it; and a real browser to look at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from benchmarks._chromium import CHROMIUM, FLAGS
from prefect_gpu.page.app import Source
from prefect_gpu.page.server import PageServer

Serve = Callable[..., Awaitable[PageServer]]


@pytest_asyncio.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Serves a source until the end of the test."""
    async with AsyncExitStack() as stack:

        async def served(source: Source, port: int = 0, **more: Any) -> PageServer:
            chosen = {
                "host": "127.0.0.1",
                "port": port,
                "note": tmp_path / "pages" / "gpus.json",
                "pool": "gpus",
            } | more
            server = PageServer(source, **chosen)
            await server.start()
            stack.push_async_callback(server.close)
            return server

        yield served


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    """A Chromium."""
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        await opened.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complains of; a test looks at it at its end."""
    return []
