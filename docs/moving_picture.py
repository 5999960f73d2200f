"""The moving picture of ``prefect-gpu status``, recorded from a real sweep: ``python -m docs.moving_picture``.

A private Prefect server, a worker with two virtual devices, and ``sweep`` over a small perceptron that really trains.
Once a second the worker is asked what it tells ``prefect-gpu status``, and Rich draws the same screen from it. Of all
these screens one SVG is made, which plays by itself and loads nothing: each line stands in it once for as long as it
stays the same, and CSS shows it at its time. Who wants no motion sees one screen.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from prefect_gpu.cli.status import _ask
from prefect_gpu.cli.status_view import screen_of
from prefect_gpu.lab.sandbox import Sandbox

PICTURE = Path(__file__).resolve().parent / "images" / "status.svg"
WIDTH = 124  # characters
EVERY_S = 1.0  # between two looks
FASTER = 2.0  # than life
LAST_S = 3.0  # how long the last screen is shown
SCREENS = 50  # of all; each one adds some 5 KB
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",
    "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES": "2",
    "PREFECT_INTEGRATIONS_GPU_PRELOAD": "sklearn.datasets,sklearn.neural_network,optuna",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
SWEEP = """
import optuna
from prefect import flow
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from prefect_gpu import gpu, sweep, training_run

@gpu(work_pool="gpus", gpus=1)
@flow
def train(lr: float, hidden: int) -> float:
    with training_run(steps=250) as run:
        x, y = load_digits(return_X_y=True)
        model = MLPClassifier((hidden,), learning_rate_init=lr, random_state=0)
        run.ready()
        for _ in run.steps():
            model.partial_fit(x, y, classes=range(10))
            run.report(loss=model.loss_)
    return float(model.loss_)

if __name__ == "__main__":
    sweep(train, {"lr": (3e-5, 3e-2, "log"), "hidden": (32, 256, "log")}, trials=12, parallel=5,
          sampler=optuna.samplers.TPESampler(seed=3), pruner=optuna.pruners.MedianPruner(n_startup_trials=4))
"""


def record() -> list[dict[str, Any]]:
    """What the worker told while the sweep went on, from its first run on, once a second."""
    told: list[dict[str, Any]] = []
    with Sandbox(settings=SETTINGS) as sandbox:
        sandbox.prefect("work-pool", "create", "gpus", "--type", "gpu")
        sandbox.start_worker("gpus", name="desk", wait=False).wait_for_output("Watch the pool")
        (sandbox.folder / "sweep.py").write_text(SWEEP)
        sweep = sandbox.start([sys.executable, "sweep.py"], "sweep")
        pages = Path(sandbox.env["PREFECT_INTEGRATIONS_GPU_STATE_DIR"]) / "pages"
        while sweep.popen.poll() is None:
            told += [one for one in _ask(pages, "gpus") if one["runs"]]
            time.sleep(EVERY_S)
        if sweep.popen.returncode:
            raise RuntimeError(f"The sweep has failed:\n{sweep.output[-3000:]}")
        told += _ask(pages, "gpus")
    return told


def lively(told: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Those around the first time that a run waits at its gate, prepared, while the runs before it train."""
    gates = (number for number, one in enumerate(told) if any(run["phase"] == "gate" for run in one["runs"]))
    begin = max(0, next(gates, 0) - SCREENS // 3)
    return told[begin : begin + SCREENS]


def screens(told: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[int, str], str]]:
    """Of each moment, the lines of the screen as SVG, by number, and the frame of a window around them."""
    for one in told:
        with open(os.devnull, "w") as nowhere:
            console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, highlight=False)
            console.print(screen_of(one))
        parts = console.export_svg(
            title="prefect-gpu status", unique_id="s", code_format="{styles}\x1e{matrix}\x1e{chrome}\x1e{height}"
        )
        styles, matrix, chrome, _ = parts.split("\x1e")
        rules = dict(re.findall(r"\.s-(r\d+) \{ (.*?) \}", styles))
        lines: dict[int, str] = {}
        for style, rest, number, text in re.findall(
            r'<text class="s-(r\d+)" (.*?)clip-path="url\(#s-line-(\d+)\)">(.*?)</text>', matrix
        ):
            lines[int(number)] = lines.get(int(number), "") + f'<text {rest}style="{rules[style]}">{text}</text>'
        yield lines, chrome


def animated(told: Sequence[dict[str, Any]]) -> str:
    """All screens as one SVG that plays for ever."""
    drawn = list(screens(told))
    frames = [lines for lines, _ in drawn]
    rows = 1 + max(max(lines) for lines in frames)
    tallest = max(range(len(frames)), key=lambda number: len(frames[number]))
    chrome = drawn[tallest][1]
    starts = [(one["now"] - told[0]["now"]) / FASTER for one in told]
    length = starts[-1] + LAST_S
    shown, groups, spans = len(frames) * 2 // 3, list[str](), set[tuple[int, int]]()
    for row in range(rows):
        begin = 0
        for end in range(1, len(frames) + 1):
            before = frames[begin].get(row, "")
            if end < len(frames) and frames[end].get(row, "") == before:
                continue
            if before:
                whole = (begin, end) == (0, len(frames))
                spans |= set() if whole else {(begin, end)}
                hidden = "" if begin <= shown < end else ' visibility="hidden"'
                groups.append(f"<g>{before}</g>" if whole else f'<g class="k k{begin}-{end}"{hidden}>{before}</g>')
            begin = end
    width, height = re.findall(r'width="([\d.]+)" height="([\d.]+)" rx', chrome)[0]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {float(width) + 2:.0f} {float(height) + 2:.0f}">\n'
        "<title>prefect-gpu status during a sweep: two devices train, the next runs are prepared, others wait</title>\n"
        f"<style>\ntext {{ font: 20px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace }}\n"
        f".s-title {{ font: bold 18px sans-serif }}\n"
        f".k {{ animation: {length:g}s step-end infinite }}\n"
        + "\n".join(_keyframes(*span, [start / length for start in starts]) for span in sorted(spans))
        + "\n@media (prefers-reduced-motion: reduce) { .k { animation: none } }\n</style>\n"
        f'{chrome}\n<g transform="translate(9, 41)">\n' + "\n".join(groups) + "\n</g>\n</svg>\n"
    )


def _keyframes(begin: int, end: int, starts: Sequence[float]) -> str:
    """Visible from one screen to the one before another; the last screen stays. Starts are parts of the whole time."""
    marks = [(0.0, "visible" if begin == 0 else "hidden")]
    if begin:
        marks.append((starts[begin], "visible"))
    if end < len(starts):
        marks.append((starts[end], "hidden"))
    steps = " ".join(f"{at:.3%} {{ visibility: {how} }}" for at, how in marks)
    return f"@keyframes k{begin}-{end} {{ {steps} }} .k{begin}-{end} {{ animation-name: k{begin}-{end} }}"


def main() -> None:
    """Record and write it."""
    told = lively(record())
    PICTURE.write_text(animated(told))
    print(f"{PICTURE}: {len(told)} screens, {PICTURE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
