"""Picture of the throughput function: ``python docs/estimation/draw_throughput.py --traces FOLDER``."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.estimation_public.gpus import GPUS_PER_NODE, RULE, gpu_tables, split
from prefect_gpu.estimation.throughput import Setup, Throughput, Tried

IMAGES = Path(__file__).parent.parent / "images"
SHOWN = (("A100", "bert", 64.0), ("A100", "vgg16", 256.0), ("T4", "yolov3", 64.0))


def draw(traces: Path) -> None:
    """Published curves, what is predicted of them from 1, 4 and 16 GPUs, and from 1, 2 and 4."""
    tables = gpu_tables(traces / "pkusys-ElasticFlow")
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(10, 3.4))
    for axis, (kind, model, batch) in zip(axes, SHOWN, strict=True):
        curve = tables[kind, model][batch]
        for rule, colour in ((RULE, "C0"), ((1, 2, 4), "C1")):
            _predicted(axis, kind, batch, split(curve, rule)[0], colour, f"from {', '.join(map(str, rule))}")
        axis.plot(
            [one.setup.gpus for one in curve], [one.steps_per_s for one in curve], "ko", markersize=4, label="measured"
        )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
        top = max(one.steps_per_s for one in curve)
        axis.set_ylim(top / 16, top * 4)
        axis.set_title(f"{model}, batch {batch:.0f}, {kind}", loc="left", fontsize=10)
        axis.set_xlabel("GPUs")
    axes[0].set_ylabel("steps per second")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(IMAGES / "estimation-throughput.png", dpi=110)
    plt.close(figure)


def _predicted(axis: plt.Axes, kind: str, batch: float, tried: list[Tried], colour: str, label: str) -> None:
    counts = list(range(1, 65))
    setups = [Setup(count, -(-count // GPUS_PER_NODE[kind]), kind, batch) for count in counts]
    found = Throughput(tried).predict_all(setups)
    axis.plot(counts, [one.median for one in found], colour, label=label)
    axis.fill_between(counts, [one.low for one in found], [one.high for one in found], color=colour, alpha=0.15)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder of the published tables")
    draw(parser.parse_args().traces)
