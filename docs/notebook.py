"""Execute ``flows/notebook.ipynb`` in a pool of its own, and keep what came out: ``python -m docs.notebook``.

Starts a Prefect server and a worker with two virtual devices in a temporary folder, and ends them. A test executes the
notebook in the same way, and keeps nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from prefect_gpu.lab.dotenv import put
from prefect_gpu.lab.tryout import TryOut

REPOSITORY = Path(__file__).resolve().parents[1]
NOTEBOOK = REPOSITORY / "flows" / "notebook.ipynb"
_VIRTUAL = {"CUDA_VISIBLE_DEVICES": "", "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES": "2"}


def execute(folder: Path) -> Any:
    """The notebook with its outputs, executed from top to end by a kernel whose folder this is, beside a pool there.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell has failed. The message has the cell and its error.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    tryout = TryOut(folder)
    put(folder / ".env", tryout.start("gpus", _VIRTUAL).settings())
    try:
        client = NotebookClient(notebook, timeout=600, record_timing=False)
        client.execute(cwd=str(folder), env=_environment())
    finally:
        tryout.end()
    for cell in notebook.cells:  # warnings of this environment's are nothing to keep
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def _environment() -> Mapping[str, str]:
    """As in a new terminal, with this Python and this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "PYTHONPATH": str(REPOSITORY)}


def main() -> None:
    """Execute it, and write it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        nbformat.write(execute(Path(folder)), NOTEBOOK)


if __name__ == "__main__":
    main()
