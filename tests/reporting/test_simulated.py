"""The picture of a simulation: its geometry, and that it is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prefect_gpu.papers.from_trace import cluster, simulate
from prefect_gpu.reporting.simulated import COLUMNS, ROWS, duration, occupation, rows_of, write_simulation_png
from prefect_gpu.simulation.results import Results, Span
from prefect_gpu.simulation.traces import TraceJob


def test_use_is_spread_over_the_columns_that_a_span_touches() -> None:
    row_of = {"a": (0, 0.5), "b": (0, 0.5), "c": (1, 1.0)}
    spans = [Span("a", "x", 0.0, COLUMNS / 2, True), Span("b", "y", 10.25, 11.75, True), Span("c", "z", 3.0, 4.0, True)]
    picture = occupation(spans, row_of, 2, 0.0, float(COLUMNS))
    assert picture[0, 9] == pytest.approx(0.5)
    assert picture[0, 10] == pytest.approx(0.5 + 0.5 * 0.75)
    assert picture[0, 11] == pytest.approx(0.5 + 0.5 * 0.75)
    assert picture[0, COLUMNS // 2] == pytest.approx(0.0)
    assert picture[1, 3] == pytest.approx(1.0) and picture[1].sum() == pytest.approx(1.0)


def test_the_use_of_all_columns_is_the_use_of_the_spans() -> None:
    rng = np.random.default_rng(1)
    starts = rng.uniform(0, 900, 50)
    spans = [Span(f"d{n}", "j", at, at + rng.uniform(0, 100), True) for n, at in enumerate(starts)]
    picture = occupation(spans, {f"d{n}": (n, 1.0) for n in range(50)}, 50, 0.0, 1000.0)
    total = sum(span.end_s - span.start_s for span in spans)
    assert picture.sum() * 1000.0 / COLUMNS == pytest.approx(total)
    assert picture.min() >= 0.0 and picture.max() <= 1.0


@pytest.mark.parametrize(
    ("nodes", "gpus", "rows"), [(2, 4, 8), (8, 8, 8), (ROWS, 8, ROWS), (ROWS + 1, 8, 21), (1000, 8, 40)]
)
def test_small_clusters_have_a_row_for_each_device_and_large_ones_for_groups(nodes: int, gpus: int, rows: int) -> None:
    labels, row_of = rows_of(cluster(nodes, gpus))
    assert len(labels) == rows
    assert len(row_of) == nodes * gpus
    for row in range(rows):
        assert sum(part for at, part in row_of.values() if at == row) == pytest.approx(1.0)


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 4), (50, 8)])
def test_small_and_large_clusters_are_drawn(tmp_path: Path, nodes: int, gpus: int) -> None:
    jobs = [TraceJob(str(n), 10.0 * n, 100.0 + n, 1 + n % 4) for n in range(40)]
    results = simulate(jobs, "srtf", nodes=nodes, gpus_per_node=gpus, keep_timeline=True, restart_cost_s=5.0)
    write_simulation_png(results, cluster(nodes, gpus), tmp_path / "x.png", title="$no math$ under srtf")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no job has finished"):
        write_simulation_png(Results(1), cluster(1, 1), tmp_path / "x.png", title="")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (42.0, "42 s"), (95.0, "1.58 min"), (7200.0, "2 h"), (200_000.0, "2.31 days"), (1e9, "11,574 days")],
)
def test_durations_have_one_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words
