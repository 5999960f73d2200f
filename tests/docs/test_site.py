"""The documentation site is built from the pages, and every link in it leads somewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Like `make docs`, from these pages into that folder."""
    settings = (ROOT / "mkdocs.yml").read_text().replace("docs_dir: docs", f"docs_dir: {docs}")
    beside = ROOT / f".mkdocs-{os.getpid()}.yml"  # paths in it, such as that of the hooks, begin where it lies
    beside.write_text(settings)
    try:
        command = [sys.executable, "-m", "mkdocs", "build", "-f", str(beside), "-d", str(site)]
        environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    finally:
        beside.unlink()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(ROOT / "docs", tmp_path / "site")
    assert done.returncode == 0 and "WARNING" not in done.stdout + done.stderr, done.stderr
    index = (tmp_path / "site" / "index.html").read_text()
    assert 'href="how-to/index.html"' in index
    assert (tmp_path / "site" / "source" / "flows" / "distributed_training.py.html").exists(), "code that pages link to"
    loaded = [line for line in index.split("<") if line.startswith(("script src=", "link "))]
    assert loaded and not [line for line in loaded if "//" in line and "canonical" not in line]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["[nowhere](no-such-page.md)", "[no heading](support.md#no-such-heading)"])
def test_a_link_that_leads_nowhere_fails(tmp_path: Path, wrong: str) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "docs" / "tutorial.md").open("a") as page:
        page.write(f"\n{wrong}\n")
    done = build(tmp_path / "docs", tmp_path / "site")
    assert done.returncode == 1
    assert wrong.partition("(")[2].rstrip(")").rpartition("#")[2] in done.stdout + done.stderr
