"""The contributor's page names files and folders that exist, and has an answer for thirty everyday tasks."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "prefect_gpu" / "scheduling" / "README.md"]
_PATH = re.compile(r"`((?:prefect_gpu|tests|docs|benchmarks)/[\w./-]*)`")


def test_every_path_exists() -> None:
    named = [path for page in PAGES for path in _PATH.findall(page.read_text())]
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_thirty_tasks_have_one_file_each() -> None:
    section = PAGES[0].read_text().split("## Where do I change …")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 30 and all(len(_PATH.findall(row)) == 1 for row in rows)


def test_every_folder_of_the_scheduler_is_on_its_map() -> None:
    scheduling = PAGES[1].parent
    folders = {path.name for path in scheduling.iterdir() if (path / "__init__.py").exists()}
    assert {name for name in folders if f"`{name}/`" not in PAGES[1].read_text()} == set()
