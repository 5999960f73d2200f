"""What a run's page shows: text and numbers, from a tracked run and a client that keeps what it is sent."""

from __future__ import annotations

import re
import time
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import FinishedRun, Known
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.learning.estimates import Estimates, as_row
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.training import protocol
from prefect_gpu.worker.telling.artifacts import RunArtifacts, accuracy_artifact
from tests.runtime.launches import launched


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
        if self._keys[artifact_id] not in self.artifacts:
            request = httpx.Request("PATCH", "http://prefect/api/artifacts")
            raise httpx.HTTPStatusError("404", request=request, response=httpx.Response(404, request=request))
        self.artifacts[self._keys[artifact_id]] = artifact

    async def read_latest_artifacts(self, artifact_filter: Any) -> list[Any]:
        """See Prefect's client."""
        [wanted] = artifact_filter.key.any_
        return [SimpleNamespace(latest_id=identity) for identity, key in self._keys.items() if key == wanted]


def a_run() -> Launch:
    return launched(str(uuid4()), Placement("n", (), ()), known={"flow_name": "Train it!"})


def shown(run: Launch, estimates: Estimates | None = None) -> tuple[RunArtifacts, KeepingClient]:
    client = KeepingClient()
    return RunArtifacts(client, run, estimates or Estimates(), every_s=0.0), client  # type: ignore[arg-type]


def estimated(run: Launch, step_s: float) -> Estimates:
    """Those of a pool where this run was submitted after six of 100 steps had finished."""
    program = Known(str(run.record.known["flow_name"]), declared={"steps": 100})
    finished = [
        FinishedRun(f"r{at}", program, {"step_s": step_s, "training_s": 100 * step_s}, ended_at=at, steps=100)
        for at in range(6)
    ]
    estimates = Estimates()
    estimates.estimator = Estimator(finished)
    estimates.submitted(run.run_id, program)
    run.record.known["estimate"] = as_row(estimates.of(run.run_id))
    return estimates


# progress reported, percent, description
PROGRESS: dict[str, tuple[dict[str, Any], float, str]] = {
    "without a rate": ({"step": 1, "steps": 4}, 25.0, "step 1 of 4"),
    "with a rate": ({"step": 5, "steps": 20, "steps_per_s": 0.5}, 25.0, "step 5 of 20, 0.5 steps/s"),
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
    artifacts = RunArtifacts(client, run, Estimates(), every_s=1e9)  # type: ignore[arg-type]
    for step in range(1, 5):
        run.progressed({"step": step, "steps": 4})
        await artifacts.show()
    assert client.calls <= 1
    await artifacts.show(final=True)
    assert client.artifacts["train-it-progress"].data == 100.0


def train(run: Launch, estimates: Estimates, *steps_at: tuple[int, float]) -> None:
    """It trains 100 steps; (steps done, seconds ago) are its reports, the first being its beginning."""
    now = time.time()
    for step, ago in steps_at:
        if step == 0:
            run.enter(protocol.TRAINING, now - ago, {"steps": 100})
            list(estimates.reported(run, protocol.PHASE, now - ago, {}))
        else:
            run.progressed({"step": step, "steps": 100})
            list(estimates.reported(run, protocol.PROGRESS, now - ago, {}))


def expected_end(artifact: Any) -> datetime:
    """The time of day, today or tomorrow, that a page tells."""
    told = re.search(r"expected to end at \*\*(?:(\S{10}) )?(\S+)\*\*", artifact.data)
    assert told is not None, artifact.data
    day = told[1] or f"{datetime.now():%Y-%m-%d}"
    return datetime.fromisoformat(f"{day}T{told[2]}")


async def test_a_page_shows_the_estimate_its_correction_and_what_was_measured() -> None:
    run = a_run()
    estimates = estimated(run, step_s=1.0)
    artifacts, client = shown(run, estimates)
    await artifacts.show()
    before = client.artifacts["train-it-estimate"]
    assert "6 finished runs of Train it!" in before.data and "expected to end" not in before.data
    assert str(before.flow_run_id) == run.run_id
    train(run, estimates, (0, 20.0), (1, 19.0), (2, 18.0))
    await artifacts.show()
    soon = expected_end(client.artifacts["train-it-estimate"])
    train(run, estimates, (3, 13.0), (4, 8.0), (5, 3.0))  # five seconds each
    await artifacts.show()
    late = client.artifacts["train-it-estimate"]
    assert expected_end(late) > soon
    assert "times as long per step as expected" in late.data
    assert "to go, until " in client.artifacts["train-it-progress"].description
    await artifacts.show(final=True, measured={"training_s": 480.0})
    over = client.artifacts["train-it-estimate"].data
    assert "| 8 min 0 s |" in over and "expected to end" not in over and "times as long" in over


async def test_a_page_of_a_run_that_nothing_is_known_of_has_no_estimate() -> None:
    run = a_run()
    estimates = Estimates()
    artifacts, client = shown(run, estimates)
    estimates.submitted(run.run_id, Known("Train it!"))
    train(run, estimates, (0, 10.0), (1, 9.0), (2, 8.0))
    await artifacts.show()
    await artifacts.show(final=True, measured={"training_s": 10.0})
    assert set(client.artifacts) == {"train-it-progress"}
    assert "to go, until " in client.artifacts["train-it-progress"].description, "but its own steps tell its end"


async def test_the_estimate_is_written_more_seldom_than_the_progress() -> None:
    run = a_run()
    estimates = estimated(run, step_s=1.0)
    client = KeepingClient()
    artifacts = RunArtifacts(client, run, estimates, every_s=1e6)  # type: ignore[arg-type]
    await artifacts.show()
    first = client.artifacts["train-it-estimate"]
    train(run, estimates, (0, 9.0), (1, 8.0), (2, 3.0))
    again_in = await artifacts.show()
    assert client.artifacts["train-it-estimate"] is first and again_in > 1e6, "and it is not forgotten"
    await artifacts.show(final=True)
    assert "expected to end" in client.artifacts["train-it-estimate"].data


async def test_the_pools_page_is_made_once_and_a_later_worker_goes_on_with_it() -> None:
    client = KeepingClient()
    page = accuracy_artifact(client, "My pool")  # type: ignore[arg-type]
    await page.show("")
    assert client.calls == 0
    for text in ("a", "b", "b"):
        await page.show(text)
    await accuracy_artifact(client, "My pool").show("c")  # type: ignore[arg-type]
    await accuracy_artifact(client, "another").show("d")  # type: ignore[arg-type]
    assert {key: one.data for key, one in client.artifacts.items()} == {
        "gpu-estimates-my-pool": "c",
        "gpu-estimates-another": "d",
    }
    assert client.calls == 4


async def test_what_somebody_has_deleted_is_made_anew_and_keeps_nothing_else_from_being_shown() -> None:
    client = KeepingClient()
    page = accuracy_artifact(client, "My pool")  # type: ignore[arg-type]
    await page.show("a")
    client.artifacts.clear()
    for text in ("b", "c"):
        await page.show(text)
    assert {key: one.data for key, one in client.artifacts.items()} == {"gpu-estimates-my-pool": "c"}
    run = a_run()
    run.record.progress = {"step": 1, "steps": 4}
    artifacts = RunArtifacts(client, run, Estimates(), every_s=0.0, story=lambda: [(1.0, "submitted")])  # type: ignore[arg-type]
    await artifacts.show()
    del client.artifacts["train-it-progress"], client.artifacts["train-it-story"]
    run.record.progress = {"step": 2, "steps": 4}
    artifacts._story_of = lambda: [(1.0, "submitted"), (2.0, "granted")]
    await artifacts.show(final=True)
    assert client.artifacts["train-it-progress"].data == 50.0 and "granted" in client.artifacts["train-it-story"].data


async def test_a_page_tells_the_story_as_it_grows_and_to_its_end() -> None:
    run, client = a_run(), KeepingClient()
    story = [(1.0, "submitted"), (2.0, "granted virtual-0: it comes next")]
    artifacts = RunArtifacts(client, run, Estimates(), every_s=1e6, story=lambda: story, page="http://here:1")  # type: ignore[arg-type]
    await artifacts.show()
    first = client.artifacts["train-it-story"]
    assert "granted virtual-0" in first.data and f"http://here:1/#run={run.run_id}" in first.data
    assert str(first.flow_run_id) == run.run_id
    story.append((9.0, "ended: its process ended"))
    assert await artifacts.show() > 1e6 and client.artifacts["train-it-story"] is first, "soon enough"
    await artifacts.show(final=True)
    assert "ended: its process ended" in client.artifacts["train-it-story"].data


async def test_a_training_of_an_hour_is_written_of_a_few_hundred_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update is a write to Prefect's database. The pool's page shows every step."""
    now, run, client = 0.0, a_run(), KeepingClient()
    monkeypatch.setattr(
        "prefect_gpu.worker.telling.artifacts.time", SimpleNamespace(time=time.time, monotonic=lambda: now)
    )
    artifacts = RunArtifacts(client, run, Estimates())  # type: ignore[arg-type]
    for second in range(3600):
        now = float(second)
        run.progressed({"step": second, "steps": 3600})
        await artifacts.show()
    assert 100 <= client.calls <= 400
