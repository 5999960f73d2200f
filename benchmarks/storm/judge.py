"""What became of everybody in the storm."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import FlowRun, StateType

from benchmarks.storm.trainings import result
from benchmarks.storm.world import CANCELLED, DELETED, MAY_GO, World


@dataclass
class Verdict:
    """What was wrong, a sentence each.

    Attributes:
        lost: Runs that did not come to their end, or to another result than an undisturbed one.
        twice: Runs that ran twice at a time, or again after they had completed.
        leaked: Devices that two runs had at a time, or that nobody has and nobody gets.
        checkpoints: Checkpoints that were saved, and were not there for the next try.
        foreign: Files of others that were touched, and processes of others that were killed.
        courses: By the name of a run with which something was wrong, its states and what it said.
        standstills: How long a worker's event loop stood still, which no hand of ours had stopped, the longest first.
    """

    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    courses: dict[str, list[str]] = field(default_factory=dict)
    standstills: list[dict[str, Any]] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """All of what was wrong with runs and devices."""
        return [*self.lost, *self.twice, *self.leaked, *self.checkpoints]

    @property
    def standstill_s(self) -> float:
        """The longest of them, seconds."""
        return max(map(_stood_still_s, self.standstills), default=0.0)


async def judge(world: World) -> Verdict:
    """Look at everything, once the storm is over and its runs had time to end."""
    verdict = Verdict(foreign=world.touched())
    said: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in read_lines(world.folder / "diary"):
        said[line["run"]].append(line)
    there = {run.id: run for run in await world.seen()}
    for id_, submitted in world.runs.items():
        run, diary = there.get(id_), said[str(id_)]
        name = run.name if run else str(id_)
        if trouble := _lost(run, submitted.fate, submitted.steps, diary):
            verdict.lost.append(f"{name} {trouble}")
        for line in diary:
            if line["what"] == "clash":
                found = verdict.twice if line["kind"] == "run" else verdict.leaked
                found.append(f"{name}: {line['kind']} {line['name']} was held by {line['other']}")
        if trouble := _went_back(diary):
            verdict.checkpoints.append(f"{name} {trouble}")
        states = await world.client.read_flow_run_states(id_) if run else []
        if _again_after_its_end([state.type for state in states]):
            verdict.twice.append(f"{name} was claimed again after it had completed")
        if any(sentence.startswith(name) for sentence in verdict.sentences):
            verdict.courses[name] = [
                *(f"{one.timestamp:%H:%M:%S.%f} {one.name}: {one.message or ''}" for one in states),
                *(json.dumps(line) for line in diary),
            ]
    for line in read_lines(world.folder / "standstills"):
        end = line["at"] + line["took_s"]
        if not any(line["at"] <= until and begun <= end for begun, until in world.frozen):
            verdict.standstills.append(line)
    verdict.standstills.sort(key=_stood_still_s, reverse=True)
    return verdict


def _stood_still_s(line: dict[str, Any]) -> float:
    """Without the time in which others had all cores of the machine."""
    return float(line["took_s"]) - float(line["waited_s"])


def _lost(run: FlowRun | None, fate: str, steps: int | None, diary: list[dict[str, Any]]) -> str:
    """Why a run counts as lost; empty if it does not."""
    if run is None or run.state is None:
        return "" if fate in (DELETED, MAY_GO) else "is not there any more"
    if not run.state.is_final():
        return f"is {run.state.name} for ever: {run.state.message}"
    if steps is None or fate in (CANCELLED, DELETED) or (fate == MAY_GO and run.state.is_cancelled()):
        return ""
    if not run.state.is_completed():
        return f"is {run.state.name}: {run.state.message}"
    results = {line["result"] for line in diary if line["what"] == "ends"}
    return "" if results == {result(steps)} else f"came to {sorted(results)}, not to {result(steps)}"


def _again_after_its_end(states: list[StateType]) -> bool:
    """Whether a run was claimed once it was Completed. (A phase's name may come over that, and is taken back.)"""
    return StateType.COMPLETED in states and StateType.PENDING in states[states.index(StateType.COMPLETED) :]


def _went_back(diary: list[dict[str, Any]]) -> str:
    """Whether a try began before a checkpoint that an earlier one had: all that it saved but the last are complete."""
    kept = 0
    tries: defaultdict[str, list[int]] = defaultdict(list)
    for line in diary:
        if line["what"] == "is retried":  # by its user: from the first step
            kept, tries = 0, defaultdict(list)
        if line["what"] == "begins" and line["step"] < kept:
            return f"began at step {line['step']}, although step {kept} was saved"
        if line["what"] == "saves":
            saved = tries[line["try"]]
            saved.append(line["step"])
            kept = max(kept, *saved[:-1], 0)
    return ""


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a file that several processes write; none if it is not there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
