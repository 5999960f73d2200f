"""``prefect-gpu what-if``: the pool's own history under another profile, or on more or fewer devices."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Annotated

import typer

from prefect_gpu.cli import common

if TYPE_CHECKING:
    from prefect_gpu.reporting.what_if import Figures, Past

_LABELS = {
    "runs": "Runs that ended",
    "mean_jct_s": "Completion time, mean",
    "mean_wait_s": "Wait for devices, mean",
    "makespan_s": "First start to last end",
    "gpu_busy_fraction": "Devices trained for",
    "never_started": "Runs that could not start",
}
_FAR_OFF = 0.2  # part of the recorded completion time from which on the simulation is called rough


def what_if(
    profile: Annotated[str | None, typer.Option(help="Another scheduling profile.", show_default="as it was")] = None,
    gpus: Annotated[str | None, typer.Option(metavar="+N", help="More devices, or fewer: +2, -1.")] = None,
    knowledge: Annotated[
        str,
        typer.Option(
            help="What the scheduler would know about durations: exact, learned (from the runs that ended before, as "
            "today), or none."
        ),
    ] = "learned",
    present: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="The profile that the pool had.", show_default="the worker's setting"),
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=2**31, help="Number of runs, the newest of the history.")] = 500,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Simulate the pool's finished runs again, and say what would have been different.

    The past is simulated twice: as it was, to show how far the simulation is from what was recorded, and with the
    change. Compare the last two columns with each other. Limits of queues and times without a worker are not in the
    history: what they did to the runs is a part of the difference between the first two.
    """
    from prefect_gpu.reporting.what_if import read_past, replay, resized
    from prefect_gpu.scheduling.profiles import get_profile
    from prefect_gpu.simulation.knowledge import KNOWLEDGE

    if profile is None and gpus is None:
        common.fail("Say what to change: --profile NAME, --gpus +2, or both.", code=2)
    if knowledge not in KNOWLEDGE:
        common.fail(f"--knowledge {knowledge} is none of {', '.join(KNOWLEDGE)}.", code=2)
    if gpus is not None and not re.fullmatch(r"[+-]\d{1,4}", gpus):
        common.fail(f"--gpus {gpus} is no change: write +2 for two more devices, or -1 for one less.", code=2)
    settings = common.load_settings()
    was = present or settings.profile
    then = profile or was
    try:
        get_profile(was)
        get_profile(then)
    except ValueError as wrong:
        common.fail(str(wrong), code=2)
    rows, total = common.read_history(settings.resolved_history_url, limit=last)
    past = read_past(rows)
    if past is None:
        common.fail("No run of the history has held a device yet." if total else "No run has finished yet.")
    try:
        nodes = resized(past.nodes, int(gpus or 0))
    except ValueError as wrong:
        common.fail(str(wrong).replace("gpus=", "--gpus "), code=2)
    live = "learned" if settings.learn else "none"  # what the pool's own scheduler is told
    with common.deciding(was):
        control = replay(past, was, KNOWLEDGE[live]())
    with common.deciding(then):
        changed = replay(past, then, KNOWLEDGE[knowledge](), nodes)
    devices = sum(len(node.devices) for node in nodes)
    if as_json:
        common.print_json(
            {
                "left_out": past.left_out,
                "recorded": {"gpus": past.devices, **dataclasses.asdict(past.recorded)},
                "control": {
                    "profile": was,
                    "gpus": past.devices,
                    "knowledge": live,
                    **dataclasses.asdict(control),
                },
                "what_if": {"profile": then, "gpus": devices, "knowledge": knowledge, **dataclasses.asdict(changed)},
            }
        )
    else:
        heads = [
            f"{head}\n{name}, {common.plural(count, 'device')}\ndurations {known}"
            for head, name, count, known in (
                ("Simulated as it was", was, past.devices, live),
                ("What if", then, devices, knowledge),
            )
        ]
        _show(past, control, changed, heads)


def _show(past: Past, control: Figures, changed: Figures, heads: list[str]) -> None:
    from prefect_gpu.reporting.tables import WORDS, each, plain_table

    table = plain_table(("", WORDS), *each({"justify": "right"}, "Recorded", *heads, "Change"))
    for name, label in _LABELS.items():
        before, after = getattr(control, name), getattr(changed, name)
        if name == "never_started" and not (before or after):
            continue
        values = (getattr(past.recorded, name), before, after)
        table.add_row(label, *(_value(name, value) for value in values), _change(name, before, after))
    screen = common.console()
    screen.print(table)
    screen.print()
    for why, count in past.left_out.items():
        screen.print(f"{common.plural(count, 'run')} {why} and {'is' if count == 1 else 'are'} left out.")
    recorded_s = past.recorded.mean_jct_s
    off = (control.mean_jct_s - recorded_s) / recorded_s if recorded_s else 0.0
    words = f"The simulation of the past is {abs(off):.0%} {'above' if off > 0 else 'below'} what was recorded"
    rough = ": take the last column as a rough guess." if abs(off) > _FAR_OFF else "."
    screen.print(words + rough, soft_wrap=True)


def _value(name: str, value: float) -> str:
    from prefect_gpu.reporting.simulated import duration

    if name.endswith("_s"):
        return duration(value)
    return f"{value:.1%}" if name == "gpu_busy_fraction" else f"{value:,.0f}"


def _change(name: str, before: float, after: float) -> str:
    if name == "gpu_busy_fraction":
        return f"{(after - before) * 100:+.1f} points"
    if not name.endswith("_s"):
        return f"{after - before:+.0f}" if after != before else ""
    return f"{(after - before) / before:+.0%}" if before else ""
