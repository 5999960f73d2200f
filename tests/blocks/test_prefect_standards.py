"""Prefect's own suite for blocks, and what its pages show beside our types."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prefect.filesystems import LocalFileSystem
from prefect.testing.standard_test_suites import BlockStandardTestSuite
from prefect.workers.process import ProcessWorker

from prefect_gpu.blocks import CheckpointStorage, GpuCluster
from prefect_gpu.blocks.files import KINDS
from prefect_gpu.links import DOCUMENTATION
from prefect_gpu.worker import GpuWorker

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("block", KINDS.values(), ids=KINDS)
class TestPrefectsOwnSuite(BlockStandardTestSuite):
    @pytest.fixture
    def block(self, request: Any) -> Any:
        return request.param

    # It loads the logo from the internet, which no test of ours needs. Prefect's own tests load the same addresses:
    # the next test compares them.
    test_has_a_valid_image = None


def test_logos_are_at_the_addresses_that_prefects_own_types_have() -> None:
    """Prefect's suite loads them from there, for its own blocks."""
    assert str(CheckpointStorage._logo_url) == str(LocalFileSystem._logo_url)
    assert str(GpuCluster._logo_url) == GpuWorker.get_logo_url() == ProcessWorker.get_logo_url()


def test_the_package_names_the_page_that_prefect_leads_to() -> None:
    assert f'Documentation = "{DOCUMENTATION}"' in (ROOT / "pyproject.toml").read_text()
    assert {str(kind._documentation_url) for kind in KINDS.values()} == {DOCUMENTATION}
    assert GpuWorker.get_documentation_url() == DOCUMENTATION
    name = re.search(r'^name = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert name is not None and DOCUMENTATION.endswith(f"/{name[1]}/")


def test_the_code_examples_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in an example is run, with the block's name as Prefect's pages fill it in."""
    for kind in KINDS.values():
        loaded: list[str] = []
        monkeypatch.setattr(kind, "load", classmethod(lambda cls, name, into=loaded: into.append(name)))
        example = (kind.get_code_example() or "").partition("```python")[2].partition("```")[0]
        exec(example, {})
        assert loaded == ["BLOCK_NAME"]
