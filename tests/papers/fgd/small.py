"""A cluster and pods that fit on a page."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

NODE_ROWS = ["n0,8000,32768,2,T4", "n1,8000,32768,2,T4", "n2,16000,65536,4,G2"]
POD_ROWS = ["p0,1000,1024,1,1000,", "p1,1000,1024,1,500,", "p2,2000,1024,0,0,", "p3,4000,1024,2,1000,G2|T4"]


def write_workload(folder: Path, *, arriving: list[int] | None = None, rank: list[int] | None = None) -> Path:
    """Nodes, the pods of the workload ``tiny``, and what seed 42 draws, if anything arrives; gives the pods' file."""
    nodes = ["sn,cpu_milli,memory_mib,gpu,model", *NODE_ROWS]
    (folder / "openb_node_list_gpu_node.csv").write_text("\n".join(nodes) + "\n")
    pods = folder / "openb_pod_list_tiny.csv"
    pods.write_text("\n".join(["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec", *POD_ROWS]) + "\n")
    if arriving is not None:
        drawn = {"42": {"pods": arriving, "node_rank": rank or [0, 1, 2]}}
        (folder / "arrivals_tiny.json.gz").write_bytes(gzip.compress(json.dumps(drawn).encode()))
    return pods
