"""Does the cap of a run that shares a device hold, and does its neighbour notice nothing?

A small training runs on the device, and beside it one that suddenly wants far more memory than it was granted. It is
to fail by itself, and the neighbour's losses are to be those of the same training alone, bit for bit, without a retry
and without a step missing. Then the same without the cap, to show that it was the cap that held. On a GPU the cap is
PyTorch's (``torch.cuda.set_per_process_memory_fraction``), on a virtual device a limit of the process's memory.

What it cannot tell: a cap in the process is cooperation, not isolation: a program that allocates past PyTorch is not
held, and the CUDA context of each process (some hundred MiB) is not counted. The neighbour's steps take longer while
two share the device; that is told, and nothing is asked of it.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks._claims import Claim
from benchmarks.gpu.pool import Job, Outcome
from benchmarks.gpu.scale import Part, Scale
from prefect_gpu.scheduling.model.jobs import Request


async def measure(scale: Scale) -> Part:
    """The neighbour alone, beside a greedy run that is capped, and beside one that is not."""
    alone = await _beside(scale, "alone")
    capped, neighbour = await _beside(scale, "capped")
    free, other = await _beside(scale, "uncapped")
    same = neighbour.completed and neighbour.marks["losses"] == alone[1].marks["losses"]
    claims = [
        Claim(
            "a run that wants more than its cap fails, and it alone",
            float(capped.out_of_memory),
            "== 1",
            capped.out_of_memory,
        ),
        Claim("its neighbour's losses are those of the same run alone", float(same), "== 1", same),
        Claim("without a cap it would have got the memory", float(free.completed), "== 1", free.completed),
    ]
    slower = _beat(neighbour) / _beat(alone[1])
    figures = {
        "granted_bytes": _granted(scale),
        "wanted_bytes": 2 * _granted(scale),
        "greedy_capped": capped.row["outcome"],
        "greedy_uncapped": free.row["outcome"],
        "last_words": list(capped.tail[-1:]),
        "neighbour": {"completed": neighbour.completed and other.completed, "step_time_over_alone": slower},
    }
    words = [
        f"granted {_granted(scale) / 2**30:.2f} GiB, wanted twice as much: {capped.row['outcome']} with the cap, "
        f"{free.row['outcome']} without; the neighbour's steps took x {slower:.2f}, its losses "
        f"{'did not change' if same else 'CHANGED'}"
    ]
    return Part(claims, figures, words)


def _granted(scale: Scale) -> int:
    return (1 << 30) if scale.machine.virtual else min(8 << 30, scale.machine.device.memory_bytes // 8)


def _beat(outcome: Outcome) -> float:
    """Median seconds of a step."""
    return statistics.median(outcome.marks["step_s"][1:])


async def _beside(scale: Scale, way: str) -> tuple[Outcome, Outcome]:
    """(The greedy run, its neighbour); alone, both are the neighbour."""
    granted = _granted(scale)
    request = Request(exclusive=False, gpu_memory_bytes=granted)
    steps = 20 if scale.quick else 60
    quiet = Job("neighbour", "cnn", scale.cnn(steps, seed=7), request)
    network: dict[str, Any] = {key: value for key, value in scale.cnn(1).items() if key != "steps"}
    more = {"mebibytes": (2 * granted) >> 20, "capped": way == "capped", **network}
    greedy = Job("greedy", "greedy", {"steps": steps // 2, "at": steps // 4, **more}, request)
    async with scale.pool(f"caps-{way}") as pool:
        outcomes = await pool.run([quiet] if way == "alone" else [quiet, greedy])
    return outcomes[-1], outcomes[0]
