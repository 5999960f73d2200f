"""A Prefect that lacks what is used of it is refused as the worker starts, and not when a run goes wrong."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from prefect.workers.base import BaseWorker

from prefect_gpu.worker import GpuWorker
from prefect_gpu.worker.server import compatible
from prefect_gpu.worker.server.compatible import TESTED, is_tested, lacking

ROOT = Path(__file__).parents[3]
_FOR_AUTHORS = (
    "_description",
    "_display_name",
    "_documentation_url",
    "_logo_url",
)  # of workers: Prefect's guide has them
_THEIRS = ("worker", "_worker", "client", "_client")  # what our code calls a worker or a client of Prefect's


async def test_a_prefect_that_lacks_something_is_named_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_INTEGRATIONS_GPU_STATE_DIR", str(tmp_path / "state"))
    worker = GpuWorker("pool")
    assert lacking(worker) == []
    monkeypatch.delattr(BaseWorker, "_submit_adhoc_run")
    with pytest.raises(
        SystemExit, match=r"Prefect 3\.\S+ is installed, and lacks .*:BaseWorker\._submit_adhoc_run"
    ) as told:
        await worker.start()
    assert f"pip install 'prefect{TESTED}'" in str(told.value)
    assert not (tmp_path / "state").exists(), "before anything is touched"


def test_what_is_used_of_prefect_and_private_is_looked_for_at_the_start() -> None:
    """What our code imports from Prefect, overrides of a worker, or uses of a worker or a client, and is private."""
    used: set[str] = set()
    for path in (ROOT / "prefect_gpu").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "prefect":
                module = any(map(_is_private, (node.module or "").split(".")))
                used |= {alias.name for alias in node.names if module or _is_private(alias.name)}
            elif isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names if alias.name.startswith("prefect.") and "._" in alias.name}
            elif isinstance(node, ast.Attribute) and _is_private(node.attr) and _owner(node) in _THEIRS:
                used.add(node.attr)
    of_base = {*vars(BaseWorker), *vars(GpuWorker("pool"))} - {*_FOR_AUTHORS}
    ours = ast.parse((ROOT / "prefect_gpu" / "worker" / "worker.py").read_text())
    mine = [node for node in ast.walk(ours) if isinstance(node, ast.Attribute) and _owner(node) == "self"]
    assigned = {node.attr for node in mine if isinstance(node.ctx, ast.Store)}
    methods = {node.name for node in ast.walk(ours) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    used |= set(filter(_is_private, ({node.attr for node in mine} - assigned | methods) & of_base))
    assert {"_deserialize_bundle_object", "_limit", "_client", "_submit_adhoc_run", "_logger"} <= used, "it finds them"
    looked_for = {part for name in compatible._PRIVATE for part in name.replace(":", ".").split(".")}
    assert used - {*looked_for, *compatible._OF_A_WORKER, *compatible._OF_A_CLIENT} == set()


def test_the_page_of_standards_names_every_private_part_and_only_tests_that_exist() -> None:
    page = (ROOT / "docs" / "prefect-standards.md").read_text()
    parts = [name.partition(":") for name in compatible._PRIVATE]
    named = {module if "._" in module else what.rpartition(".")[2] for module, _, what in parts}
    assert {name for name in named | {*compatible._OF_A_WORKER, *compatible._OF_A_CLIENT} if name not in page} == set()
    tests = re.findall(r"`((?:\w+/)*test_\w+\.py)`", page)
    assert len(tests) > 20
    assert [one for one in tests if not (ROOT / "tests" / one).exists() and not (ROOT / one).exists()] == []


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _owner(node: ast.Attribute) -> str:
    value = node.value
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""


def test_the_package_asks_for_the_versions_that_are_tested() -> None:
    assert f'"prefect{TESTED}"' in (ROOT / "pyproject.toml").read_text()
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("prefect=="))
    assert is_tested(pinned.removeprefix("prefect==")) and not is_tested("3.9.0") and not is_tested("3.8.7")
