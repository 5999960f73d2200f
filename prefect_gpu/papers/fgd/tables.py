"""The tables of FGD's experiments: nodes and pods of Alibaba's cluster of 2023 (openb), and the order of arrivals.

Nodes and pods are public at github.com/hkust-adsl/kubernetes-scheduler-simulator (``data/csv``). Which pods arrive in
which order is what that simulator draws from a seed, written down as ``{"42": {"pods": [...], "node_rank": [...]}}``:
indices into the pods sorted by name, and by node, sorted by name, its rank among equals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from prefect_gpu.simulation.traces import TraceJob
from prefect_gpu.simulation.traces.table import open_bytes, read_table

WHOLE_MILLI = 1000
"""Thousandths of a GPU that one GPU has."""
MOST_DEVICES = 8
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
NODES = "openb_node_list_gpu_node.csv"
_LARGEST = 2**40  # of CPU thousandths and MiB


class Shape(NamedTuple):
    """What a pod asks for.

    Attributes:
        cpu_milli: Thousandths of a core.
        memory_mib: Memory of the node.
        milli: Thousandths of each of its GPUs; 0 if it asks for none.
        gpus: How many GPUs; several are whole ones.
        spec: Models of which one will do, separated by ``|``; empty: any.
    """

    cpu_milli: int
    memory_mib: int
    milli: int
    gpus: int
    spec: str = ""

    @property
    def models(self) -> frozenset[str]:
        """Of which one will do; empty: any."""
        return frozenset(filter(None, self.spec.split("|")))

    @property
    def total_milli(self) -> int:
        """Thousandths on all its GPUs."""
        return self.milli * self.gpus


NOTHING = Shape(0, 0, 0, 0)


@dataclass(frozen=True)
class Pod(TraceJob):
    """A job that asks for parts of devices, for memory and for models."""

    shape: Shape = NOTHING


class Machine(NamedTuple):
    """A node as it is when empty."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class Arrivals(NamedTuple):
    """What a seed has drawn.

    Attributes:
        pods: Indices into the pods sorted by name, in the order of their arrival.
        node_rank: By node, sorted by name: the lowest comes first where nodes are equal.
    """

    pods: Sequence[int]
    node_rank: Sequence[int]


def read_pods(path: Path) -> list[Pod]:
    """The pods of a workload, sorted by name; they arrive one a second. Raises TraceError.

    Their times in the file are not those of these experiments, in which nobody leaves: see :class:`Arrivals`.
    """
    found = []
    for row in read_table(path, POD_COLUMNS):
        gpus = row.whole("num_gpu", most=MOST_DEVICES)
        shape = Shape(
            row.whole("cpu_milli", most=_LARGEST),
            row.whole("memory_mib", most=_LARGEST),
            row.whole("gpu_milli", least=1, most=WHOLE_MILLI) if gpus else 0,
            gpus,
            row.get("gpu_spec"),
        )
        if gpus > 1 and shape.milli < WHOLE_MILLI:
            raise row.wrong(
                "gpu_milli", shape.milli, "is a part of several GPUs", "give 1000 where num_gpu is above 1."
            )
        found.append((row.name("name"), shape))
    return [
        Pod(
            name,
            float(number),
            0.0,
            shape.gpus,
            model=shape.spec,
            cpus=shape.cpu_milli / 1000,
            gpu_share=shape.milli / WHOLE_MILLI if shape.gpus else 1.0,
            shape=shape,
        )
        for number, (name, shape) in enumerate(sorted(found))
    ]


def read_machines(path: Path) -> list[Machine]:
    """The nodes, sorted by name. Raises TraceError."""
    return sorted(
        Machine(
            row.name("sn"),
            row.whole("cpu_milli", most=_LARGEST),
            row.whole("memory_mib", most=_LARGEST),
            row.whole("gpu", most=MOST_DEVICES),
            row.get("model"),
        )
        for row in read_table(path, NODE_COLUMNS)
    )


def arrivals_of(pods: Path, folder: Path) -> Path:
    """Where the arrivals of a workload stand, by the name of the file of its pods."""
    return folder / f"arrivals_{pods.name.split('.')[0].removeprefix('openb_pod_list_')}.json.gz"


def read_arrivals(path: Path) -> Mapping[int, Arrivals]:
    """What the seeds have drawn.

    Raises:
        ValueError: The file is no such table.
        OSError: It cannot be opened.
    """
    try:
        with open_bytes(path) as file:
            said = json.load(file)
        return {int(seed): Arrivals(drawn["pods"], drawn["node_rank"]) for seed, drawn in said.items()}
    except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise ValueError(f"{path} holds no arrivals by seed ({error}): name the file of the pods' arrivals") from error
