"""``flows/notebook.ipynb``: executed from top to end, against a real server and worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from docs.notebook import NOTEBOOK, execute


def kinds(notebook: Any) -> list[set[str]]:
    """Of each cell, what it put out: kinds of media, or the name of a stream, which may come in pieces."""
    return [
        {kind for output in cell.outputs for kind in (output.get("data") or {output.get("name"): ""})}
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_kept_outputs_are_there_and_none_is_an_error() -> None:
    kept = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(kept)
    assert sum("image/png" in kind for kind in kinds(kept)) == 2, "the losses and the timeline"
    assert all(output.output_type != "error" for cell in kept.cells for output in cell.get("outputs", ()))


@pytest.mark.full  # a server, a worker, a kernel, and twelve trainings
def test_it_runs_from_top_to_end_and_shows_what_it_is_said_to(tmp_path: Path) -> None:
    assert kinds(execute(tmp_path)) == kinds(nbformat.read(NOTEBOOK, as_version=4))
