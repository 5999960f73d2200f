"""No module imports one that imports it back, at run time or for its types; what others have made is declared."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("package", ["prefect_gpu", "benchmarks"])
def test_there_are_no_circles(package: str) -> None:
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    assert len(graph.modules) > 20
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(f"These import each other: {' → '.join(error.args[1])}", pytrace=False)


def imported(file: Path) -> Iterator[str]:
    """Names of the packages that a file imports."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_every_package_that_is_imported_is_declared() -> None:
    files = list((ROOT / "prefect_gpu").rglob("*.py"))
    ours = {"prefect_gpu", *(file.stem for file in files)}  # in a container some lie side by side, and find each other
    found = {name: file for file in files for name in imported(file) if name not in sys.stdlib_module_names | ours}
    declared = {
        canonicalize_name(name)
        for name in re.findall(r'"([A-Za-z0-9._-]+)(?:\[[a-z]+\])?[<>=]', (ROOT / "pyproject.toml").read_text())
    }
    assert len(found) > 20 and "prefect" in declared
    of = packages_distributions()
    otherwise = {"mlflow": ["mlflow-skinny"]}  # brought by a distribution that may not be there
    older = {"pytorch_lightning"}  # Lightning's former name, which is tried where the new one is not
    lacking = {
        f"{name} ({file.relative_to(ROOT)})"
        for name, file in found.items()
        if name not in older
        and not {canonicalize_name(one) for one in of.get(name, otherwise.get(name, [name]))} & declared
    }
    assert not lacking, "name these in pyproject.toml, with the range that is true"


BLOCKED = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
for name in {modules}:
    importlib.import_module(name)
"""


def test_what_submits_and_trains_is_imported_without_what_serves() -> None:
    """The settings, the decorator, the worker's class: Prefect imports them in every training environment."""
    blocked = {"numpy", "scipy", "sklearn", "xgboost", "docker", "boto3", "botocore", "optuna", "plotly", "matplotlib"}
    inside = ("settings", "worker", "bundles.storage", "blocks")
    modules = ["prefect_gpu", *(f"prefect_gpu.{name}" for name in inside)]
    code = BLOCKED.format(blocked=blocked, modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
