"""What a run's page shows: text and numbers, from a tracked run and a client that keeps what it is sent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from prefect_gpu.runtime.records import RunRecord
from prefect_gpu.runtime.tracked import TrackedRun
from prefect_gpu.scheduling.cluster import Placement
from prefect_gpu.scheduling.jobs import Request
from prefect_gpu.worker.artifacts import RunArtifacts


class KeepingClient:
    """A stand-in for Prefect's client: keeps the newest of each artifact, and counts the calls."""

    def __init__(self) -> None:
        self.artifacts: dict[str, Any] = {}
        self.calls = 0
        self._keys: dict[UUID, str] = {}

    async def create_artifact(self, artifact: Any) -> Any:
        """See Prefect's client."""
        self.calls += 1
        assert artifact.key not in self.artifacts, "made once, and then kept up to date"
        self.artifacts[artifact.key] = artifact
        identity = uuid4()
        self._keys[identity] = artifact.key
        return SimpleNamespace(id=identity)

    async def update_artifact(self, artifact_id: UUID, artifact: Any) -> None:
        """See Prefect's client."""
        self.calls += 1
        self.artifacts[self._keys[artifact_id]] = artifact


def a_run() -> TrackedRun:
    record = RunRecord(str(uuid4()), "sly fox", "pool", "q", "t", Request(), Placement("n", (), ()))
    record.known["flow_name"] = "Train it!"
    return TrackedRun(record, Path("unused"))


def shown(run: TrackedRun) -> tuple[RunArtifacts, KeepingClient]:
    client = KeepingClient()
    return RunArtifacts(client, run, every_s=0.0), client  # type: ignore[arg-type]


# progress reported, percent, description
PROGRESS: dict[str, tuple[dict[str, Any], float, str]] = {
    "without a rate": ({"step": 1, "steps": 4}, 25.0, "step 1 of 4"),
    "with a rate": ({"step": 5, "steps": 20, "steps_per_s": 0.5}, 25.0, "step 5 of 20, 0.5 steps/s, about 30 s to go"),
    "at the end": ({"step": 20, "steps": 20, "steps_per_s": 2.0}, 100.0, "step 20 of 20, 2 steps/s"),
    "beyond the end": ({"step": 25, "steps": 20, "steps_per_s": 2.0}, 100.0, "step 25 of 20, 2 steps/s"),
    "at the beginning": ({"step": 0, "steps": 3}, 0.0, "step 0 of 3"),
    "of a third": ({"step": 1, "steps": 3}, 33.3, "step 1 of 3"),
}


@pytest.mark.parametrize("progress, percent, description", PROGRESS.values(), ids=PROGRESS.keys())
async def test_progress(progress: dict[str, Any], percent: float, description: str) -> None:
    run = a_run()
    artifacts, client = shown(run)
    run.progressed(progress)
    await artifacts.show()
    [artifact] = client.artifacts.values()
    assert (artifact.data, artifact.description, artifact.type) == (percent, description, "progress")
    assert artifact.key == "train-it-progress" and str(artifact.flow_run_id) == run.run_id


@pytest.mark.parametrize("progress", [{}, {"step": 3}, {"step": 3, "steps": 0}, {"step": "three", "steps": 4}])
async def test_nothing_is_shown_where_there_is_nothing_to_show(progress: dict[str, Any]) -> None:
    run = a_run()
    artifacts, client = shown(run)
    run.progressed(progress)
    await artifacts.show(final=True)
    assert client.calls == 0


async def test_losses_are_a_curve_and_a_table_that_ends_in_the_last_point() -> None:
    run = a_run()
    artifacts, client = shown(run)
    run.progressed({"losses": [[step, 1.0 / step] for step in range(1, 101)]})
    await artifacts.show()
    [artifact] = client.artifacts.values()
    lines = artifact.data.splitlines()
    assert lines[0].startswith("`█") and lines[0].endswith("▁`  best 0.01")
    assert lines[2:4] == ["| step | loss |", "|---:|---:|"]
    assert lines[-1] == "| 100 | 0.01 |" and 12 <= len(lines[4:]) <= 13
    assert artifact.key == "train-it-losses" and artifact.type == "markdown"


async def test_what_has_not_changed_is_not_sent_again() -> None:
    run = a_run()
    artifacts, client = shown(run)
    run.progressed({"step": 1, "steps": 4, "loss": 0.5})
    await artifacts.show()
    await artifacts.show(final=True)
    assert client.calls == 2
    run.progressed({"step": 2, "steps": 4, "loss": 0.4})
    await artifacts.show()
    assert client.calls == 4 and client.artifacts["train-it-progress"].data == 50.0


async def test_many_reports_are_one_update_and_the_last_is_never_lost() -> None:
    run = a_run()
    client = KeepingClient()
    artifacts = RunArtifacts(client, run, every_s=1e9)  # type: ignore[arg-type]
    for step in range(1, 5):
        run.progressed({"step": step, "steps": 4})
        await artifacts.show()
    assert client.calls <= 1
    await artifacts.show(final=True)
    assert client.artifacts["train-it-progress"].data == 100.0
