"""``watch``: a table of runs that is kept up to date until they are over, in a notebook or a terminal.

All that it shows comes from Prefect, so it works wherever runs are submitted from. In a notebook the table is drawn
anew by IPython's own display, which needs no widgets; elsewhere a line is printed when a run changes its state.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
)

from prefect_gpu.phases import FAILED, PHASES
from prefect_gpu.reporting.losses import read_losses
from prefect_gpu.reporting.sparkline import sparkline
from prefect_gpu.reporting.tables import harmless
from prefect_gpu.server_needed import server_needed

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.futures import PrefectFlowRunFuture

_AT_A_TIME = 100  # runs; the server answers with 200 artifacts at most, and each run has two of ours
_CURVE = 24  # characters
_SETTLED_S = 10.0  # at most: a run's page is complete a moment after its end
_SILENT_S = 5.0  # the same of a run that has told nothing until then: it may be one that never does
_NOTHING_TO_SAY = ("Completed", "Pending")  # states whose messages are of no interest to who waits
_COLOURS = {phase.word: phase.colour for phase in PHASES.values()} | {
    "Completed": "#2E8B57",
    "Failed": FAILED.colour,
    "Crashed": FAILED.colour,
    "Cancelled": FAILED.colour,
    "TimedOut": FAILED.colour,
}


@dataclass(frozen=True)
class Watched:
    """A run as it was when it was last looked at.

    Attributes:
        id: Of its flow run.
        name: Of its flow run.
        parameters: What its flow was called with.
        state: The name of its state: ``AwaitingGpu``, ``Training``, ``Completed``, …
        over: Whether it has ended.
        message: What Prefect has to say about the state: why the run waits, why it failed.
        percent: How much of its training is done, 0 to 100; None if it does not tell.
        said: The same in words, with its speed, and when it is expected to end.
        losses: Step and loss of some of its steps, from the first one to the last.
    """

    id: UUID
    name: str
    parameters: dict[str, Any]
    state: str
    over: bool
    message: str = ""
    percent: float | None = None
    said: str = ""
    losses: list[tuple[float, float]] = field(default_factory=list)


class Watch(list[Watched]):
    """Runs in the order in which they were named. A notebook shows it as a table."""

    def _repr_html_(self) -> str:
        rows = "".join(map(_row, self))
        head = "".join(f'<th style="text-align:left">{word}</th>' for word in ("Run", "With", "State", "Done", "Loss"))
        return f'<table><thead><tr>{head}</tr></thead><tbody style="text-align:left">{rows}</tbody></table>'

    def __repr__(self) -> str:
        return "\n".join(map(_line, self))


def watch(runs: Iterable[PrefectFlowRunFuture[Any] | FlowRun | UUID], *, every_s: float = 1.0) -> Watch:
    """Show runs until all of them are over. To interrupt it ends the watching; the runs go on.

    If Prefect goes out of reach meanwhile, it says so once, and goes on when Prefect answers again.

    Args:
        runs: A list of what ``submit`` and ``start`` return, of flow runs, or of their ids.
        every_s: Seconds between two looks.

    Returns:
        The runs as they are then, with their losses.

    Raises:
        ValueError: A run is none of these, or Prefect does not know it. The message names it.
        ConnectionError: No server is set, none answers from the beginning, or it lets nobody in. The message says what
            to do.

    Example:
        ```python
        runs = watch([train.submit(lr=lr) for lr in (0.001, 0.01)])
        for run in runs:
            pyplot.plot(*zip(*run.losses), label=run.name)
        ```
    """
    if isinstance(runs, str) or not isinstance(runs, Iterable):
        raise ValueError(f"runs={runs!r} is no list: give a list of runs, such as watch([future]).")
    ids = [_id_of(run) for run in runs]
    screen, seen = _Notebook() if _in_notebook() else _Lines(), Watch()
    with server_needed(), get_client(sync_client=True) as client:
        look_again = _Patient(client, ids)
        try:
            while not seen or not all(one.over for one in seen):
                if seen:
                    time.sleep(every_s)
                seen = look_again(seen)
                screen.show(seen)
                if not ids:
                    break
            before, ended = Watch(), time.monotonic()
            while (seen != before or not _complete(seen, time.monotonic() - ended)) and (
                time.monotonic() < ended + _SETTLED_S
            ):
                time.sleep(min(every_s, 1.0))
                before, seen = seen, look_again(seen)
                screen.show(seen)
        except KeyboardInterrupt:
            print("No longer watched. The runs go on.")
    return seen


class _Patient:
    """Looks, and outlives a restart of the server or a laptop that is closed: a watch may last for days."""

    def __init__(self, client: SyncPrefectClient, ids: Sequence[UUID]) -> None:
        self._client, self._ids = client, ids
        self._away = False

    def __call__(self, before: Watch) -> Watch:
        """The runs as they are now; as they were before if Prefect is out of reach.

        Raises:
            httpx.HTTPError: It is out of reach from the beginning, or refuses to answer.
        """
        try:
            found = look(self._client, self._ids)
        except httpx.HTTPError as error:
            refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
            if refused or not before:
                raise
            if not self._away:
                print(f"Prefect is out of reach ({error}). The runs go on, and are shown once it answers.", flush=True)
            self._away = True
            return before
        self._away = False
        return found


def look(client: SyncPrefectClient, ids: Sequence[UUID]) -> Watch:
    """The runs as they are now, in this order.

    Raises:
        ValueError: Prefect does not know one of them. The message names it.
    """
    found: dict[UUID, FlowRun] = {}
    told: dict[tuple[UUID, str], Any] = {}
    for first in range(0, len(ids), _AT_A_TIME):
        some = list(ids[first : first + _AT_A_TIME])
        these = FlowRunFilter(id=FlowRunFilterId(any_=some))
        found |= {run.id: run for run in client.read_flow_runs(flow_run_filter=these)}
        for kind in ("progress", "losses"):
            chosen = ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=some), key=ArtifactFilterKey(like_=f"%-{kind}")
            )
            for artifact in client.read_artifacts(artifact_filter=chosen):
                if artifact.flow_run_id is not None:
                    told[artifact.flow_run_id, kind] = artifact
    missing = [str(one) for one in ids if one not in found]
    if missing:
        raise ValueError(
            f"runs={missing[0]}: the Prefect server knows no such flow run. Is PREFECT_API_URL the right one?"
        )
    return Watch(_watched(found[one], told.get((one, "progress")), told.get((one, "losses"))) for one in ids)


def _watched(run: FlowRun, progress: Any, losses: Any) -> Watched:
    state = run.state
    return Watched(
        run.id,
        run.name,
        run.parameters,
        (state.name or state.type.value.capitalize()) if state else "Pending",
        bool(state and state.is_final()),
        (state.message or "") if state else "",
        float(progress.data) if progress is not None and isinstance(progress.data, int | float) else None,
        (progress.description or "") if progress is not None else "",
        read_losses(str(losses.data)) if losses is not None else [],
    )


def _complete(seen: Watch, since_s: float) -> bool:
    """Whether their pages say how it ended, as far as can be told: a run that was stopped early never says 100 %.

    Args:
        since_s: Seconds since all of them were over.
    """
    enough = (None, 100.0) if since_s >= _SILENT_S else (100.0,)
    return all(one.state != "Completed" or one.percent in enough for one in seen)


class _Lines:
    """Prints a line when a run changes its state, and another one where its last loss is known only after its end."""

    def __init__(self) -> None:
        self._said: dict[UUID, tuple[str, tuple[float, float] | None]] = {}

    def show(self, seen: Watch) -> None:
        for one in seen:
            now = (one.state, one.losses[-1] if one.over and one.losses else None)
            if self._said.get(one.id) != now:
                self._said[one.id] = now
                code = getattr(sys.stdout, "encoding", None) or "utf-8"  # a name that it lacks ends nothing
                print(_line(one).encode(code, "replace").decode(code), flush=True)


class _Notebook:
    """Draws the table in its cell, in place of the one before."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, seen: Watch) -> None:
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(seen, display_id=True)
        else:
            self._handle.update(seen)


def _in_notebook() -> bool:
    """Whether a kernel runs this: a terminal's IPython cannot draw over what it has shown."""
    found = sys.modules.get("IPython")
    shell = found.get_ipython() if found is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _id_of(run: Any) -> UUID:
    found = getattr(run, "flow_run_id", None) or getattr(run, "id", None) or run
    try:
        return found if isinstance(found, UUID) else UUID(str(found))
    except ValueError:
        raise ValueError(f"runs={run!r} is no run: give what `submit` returned, a flow run, or its id.") from None


def _line(one: Watched) -> str:
    return harmless(f"{one.name}: {_words(one)}")


def _words(one: Watched) -> str:
    loss = f", loss {one.losses[-1][1]:.4g}" if one.losses else ""
    why = f": {one.message}" if one.message and one.state not in _NOTHING_TO_SAY else ""
    return f"{one.state}{loss}{why}"


def _row(one: Watched) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in one.parameters.items())
    colour = _COLOURS.get(one.state, "#7A7A7A")
    bar = ""
    if one.percent is not None:
        bar = (
            '<div style="width:8em;background:#8884;height:.7em">'
            f'<div style="width:{one.percent:.0f}%;background:{colour};height:.7em"></div></div>'
            f"<small>{escape(one.said)}</small>"
        )
    loss = f"<code>{sparkline([y for _, y in one.losses], _CURVE)}</code> {one.losses[-1][1]:.4g}" if one.losses else ""
    why = f"<br><small>{escape(one.message[:200])}</small>" if one.message and one.state not in _NOTHING_TO_SAY else ""
    cells = (
        escape(one.name),
        f"<small>{escape(given[:80])}</small>",
        f'<span style="color:{colour}">●</span> {escape(one.state)}{why}',
        bar,
        loss,
    )
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"
