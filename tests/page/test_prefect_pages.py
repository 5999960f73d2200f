"""What Prefect's own pages show of our blocks, and of the worker's type where it is listed."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, Route, expect

from prefect_gpu.blocks import GpuCluster
from prefect_gpu.lab.sandbox import Sandbox
from prefect_gpu.links import DOCUMENTATION
from prefect_gpu.worker import GpuWorker

pytestmark = pytest.mark.slow
PATIENCE_MS = 60_000  # against hanging for ever


async def listed(route: Route) -> None:
    """Prefect's registry of collections, which a server brings with it or loads from Prefect, and us in it."""
    answer = await route.fetch()
    registry = await answer.json()
    entry = {
        "type": GpuWorker.type,
        "display_name": GpuWorker._display_name,
        "description": GpuWorker.get_description(),
        "documentation_url": GpuWorker.get_documentation_url(),
        "logo_url": GpuWorker.get_logo_url(),
        "install_command": "pip install 'prefect-gpu[worker]'",
        "is_beta": False,
        "default_base_job_configuration": GpuWorker.get_default_base_job_template(),
    }
    assert entry.keys() == registry["prefect"]["process"].keys(), "as the entry of Prefect's own worker"
    await route.fulfill(response=answer, json=registry | {"prefect-gpu": {GpuWorker.type: entry}})


async def test_prefects_pages_show_our_blocks_and_our_worker_where_it_is_listed(
    sandbox: Sandbox, browser: Browser
) -> None:
    await asyncio.to_thread(sandbox.prefect, "block", "register", "-m", "prefect_gpu")
    page = await browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    await page.goto(f"{sandbox.ui_url}/blocks/catalog/{GpuCluster.get_block_type_slug()}")
    await expect(page.get_by_text(str(GpuCluster.get_description())).first).to_be_visible(timeout=PATIENCE_MS)
    await expect(page.get_by_role("link", name="Documentation")).to_have_attribute(
        "href", DOCUMENTATION, timeout=PATIENCE_MS
    )
    await expect(page.locator(f'img[src="{GpuCluster._logo_url}"]').first).to_be_attached(timeout=PATIENCE_MS)
    await expect(page.locator("code").filter(has_text="import GpuCluster").first).to_be_visible(timeout=PATIENCE_MS)

    await page.route("**/collections/views/aggregate-worker-metadata", listed)
    await page.goto(f"{sandbox.ui_url}/work-pools/create")
    await expect(page.get_by_text(GpuWorker.get_description())).to_be_visible(timeout=PATIENCE_MS)
    await expect(page.locator(f'img[src="{GpuWorker.get_logo_url()}"]').first).to_be_attached(timeout=PATIENCE_MS)
    await page.get_by_text("GPU", exact=True).click()
    await page.get_by_role("button", name="Next").click()
    await page.get_by_label("Name").first.fill("made-on-the-page")
    await page.get_by_role("button", name="Next").click()
    await expect(page.get_by_text("How many GPUs", exact=False).first).to_be_visible(
        timeout=PATIENCE_MS
    )  # our fields are in its form
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_text("prefect worker start").first).to_be_visible(timeout=PATIENCE_MS)
    assert "made-on-the-page" in sandbox.prefect("work-pool", "ls")
