"""No module imports one that imports it back, by whatever way, at run time or for its types."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


@pytest.mark.parametrize("package", ["prefect_gpu", "benchmarks"])
def test_there_are_no_circles(package: str) -> None:
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    assert len(graph.modules) > 20
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(f"These import each other: {' → '.join(error.args[1])}", pytrace=False)
