"""What happened to a run and why, in words, for its page in Prefect."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.launch.launch import WAITING, Launch
from prefect_gpu.training import protocol
from prefect_gpu.units import format_seconds

_MOST = 60  # lines of a story; of a longer one, the beginning and the end are told


def story_markdown(
    run: Launch,
    story: Sequence[tuple[float, str]],
    *,
    now: float,
    page: str = "",
    zone: tzinfo | None = None,
) -> str:
    """The story of a run, with times relative to its submission; empty if there is none.

    Args:
        story: (worker's time, sentence) in order.
        now: The worker's time.
        page: Address of the pool's page; empty if there is none.
        zone: Whose time is meant; None: that of this machine.
    """
    if not story:
        return ""
    begin = min(run.record.times.get("submitted") or story[0][0], story[0][0])
    lines = [f"| +{_after(at - begin)} | {_cell(words)} |" for at, words in story]
    if len(lines) > _MOST:
        left_out = len(lines) - _MOST
        lines[_MOST // 2 : -_MOST // 2] = [f"| … | {left_out} more |"]
    submitted = datetime.fromtimestamp(CLOCK.unix(begin), zone).astimezone(zone)
    said = [f"Submitted {submitted:%Y-%m-%d %H:%M:%S %Z}."]
    said += _summary(run, now)
    if page:
        said.append(
            f"[The pool's page]({page}/#run={run.run_id}) shows it among the other runs, while the worker runs."
        )
    return " ".join(said) + "\n\n| after | what happened, and why |\n|---:|---|\n" + "\n".join(lines) + "\n"


def _summary(run: Launch, now: float) -> list[str]:
    """What matters in sum: the gate, idle devices, giving way, cores."""
    times, said = run.record.times, []
    if run.record.gated and WAITING in times:
        waited = times.get(protocol.TRAINING, now) - times[WAITING]
        said.append(f"It was prepared behind another run, and waited {_after(waited)} at its gate.")
    if run.device_idle_s is not None:
        said.append(f"Its devices stood idle for {_after(run.device_idle_s)} before it trained.")
    demoted_s = run.demoted_s(now)
    if demoted_s:
        said.append(f"It gave way to other runs for {_after(demoted_s)}.")
    cores = len(run.record.placement.cpus)
    if cores:
        said.append(f"It has {cores} core{'' if cores == 1 else 's'}.")
    return said


def _after(seconds: float) -> str:
    return f"{max(0.0, seconds):.2f} s" if seconds < 60 else format_seconds(seconds)


def _cell(words: str) -> str:
    """In one cell of a table: names are people's, and may hold anything."""
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
