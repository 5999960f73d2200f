"""The documentation site: links lead somewhere, the reference is complete, and nothing is loaded from elsewhere."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterable
from html import unescape
from pathlib import Path

import pytest
from typer.main import get_command

import prefect_gpu.training
from prefect_gpu.cli import app
from prefect_gpu.runtime.drivers.base import LaunchSpec
from prefect_gpu.scheduling.model.events import Event
from prefect_gpu.scheduling.model.instructions import Instruction
from prefect_gpu.settings import GpuSettings
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.training import protocol
from prefect_gpu.worker.configuration import GpuVariables

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def build(docs: Path, site: Path, *, whole: bool = True) -> subprocess.CompletedProcess[str]:
    """Like `make docs`, from these pages into that folder; not the whole: from these alone."""
    settings = (ROOT / "mkdocs.yml").read_text().replace("docs_dir: docs", f"docs_dir: {docs}")
    if not whole:
        settings = re.sub("^hooks: .*$", "", settings.partition("\nnav:")[0], flags=re.MULTILINE)
    beside = ROOT / f".mkdocs-{os.getpid()}.yml"  # paths in it, such as that of the hooks, begin where it lies
    beside.write_text(settings)
    try:
        command = [sys.executable, "-m", "mkdocs", "build", "-f", str(beside), "-d", str(site)]
        environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    finally:
        beside.unlink()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0 and "WARNING" not in done.stdout + done.stderr, done.stderr
    return folder


def test_it_needs_nothing_from_elsewhere(site: Path) -> None:
    for page in ("index.html", "reference/training.html"):
        tags = (site / page).read_text().split("<")
        loaded = [tag for tag in tags if tag.startswith(("script src=", "link ", "img "))]
        assert loaded and not [tag for tag in loaded if "//" in tag and "canonical" not in tag]


def test_code_that_pages_link_to_is_in_it_and_not_in_the_search(site: Path) -> None:
    assert 'href="how-to/index.html"' in (site / "index.html").read_text()
    assert (site / "source" / "flows" / "distributed_training.py.html").exists()
    index = (site / "search" / "search_index.json").read_text()
    assert "reference/settings.html" in index and "source/flows/distributed_training" not in index


REFERENCE: dict[str, Iterable[str]] = {
    "settings": GpuSettings.model_fields,
    "job-variables": GpuVariables.model_fields,
    "cli": (f"prefect-gpu {name}" for name in get_command(app).list_commands(None)),  # type: ignore[attr-defined, arg-type]
    "training": prefect_gpu.training.__all__,
    "history": (field.name for field in dataclasses.fields(HistoryRow)),
    "scheduler": (one.__name__ for one in (*typing.get_args(Event), *typing.get_args(Instruction))),
    "drivers": (field.name for field in dataclasses.fields(LaunchSpec)),
    "channel": (name for name in vars(protocol) if name.isupper()),
}


@pytest.mark.parametrize("page", REFERENCE)
def test_the_reference_has_it_all(site: Path, page: str) -> None:
    html = (site / "reference" / f"{page}.html").read_text()
    assert ",</code></b>" not in html, "a docstring describes two names at once"
    text = unescape(re.sub(r"<[^>]+>", "", html))
    words = {*re.findall(r"[\w-]+", text), *re.findall(r"prefect-gpu [\w-]+", text)}
    assert [name for name in REFERENCE[page] if name not in words] == []
    assert not re.search(r":(class|meth|func|mod|attr):", text), "what only Sphinx reads"


def test_links_that_lead_nowhere_fail(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    index, other = tmp_path / "docs" / "index.md", tmp_path / "docs" / "other.md"
    index.write_text("# Index\n\n[other](other.md#heading)\n")
    other.write_text("# Other\n\n## Heading\n")
    done = build(tmp_path / "docs", tmp_path / "site", whole=False)
    assert done.returncode == 0, done.stderr
    index.write_text("# Index\n\n[nowhere](no-such-page.md), [no heading](other.md#no-such-heading)\n")
    done = build(tmp_path / "docs", tmp_path / "site", whole=False)
    assert done.returncode == 1
    assert "no-such-page.md" in done.stderr and "no-such-heading" in done.stderr
