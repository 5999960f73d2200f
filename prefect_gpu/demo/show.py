"""The demo from its beginning to its end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console

from prefect_gpu.cli.common import console as make_console
from prefect_gpu.demo.board import Board
from prefect_gpu.demo.closing import closing_words, results_table
from prefect_gpu.demo.common import DemoError, check_checkout, explain, look, problem_of, take_folder, timed
from prefect_gpu.demo.stage import DEVICES, Stage
from prefect_gpu.lab.migrated import MigratedDatabase
from prefect_gpu.lab.sandbox import SandboxError
from prefect_gpu.reporting.timeline import write_timeline
from prefect_gpu.storage.row import HistoryRow

_SWEEP, _RETRAIN = "automl-sweep", "retrain-pipeline"
_PARALLEL = DEVICES + 2  # more than there is room for, so that runs wait
_EFFORT = 10.0  # trials of a few seconds: long enough to watch
_RETRAININGS = 2  # the first model is promoted in any case, the second one only if it is better
_RETRAIN_EPOCHS = 600
_POLL_S = 0.4
_DEADLINE_S = 1200.0


class Show:
    """One demo.

    Args:
        output: Folder for pictures, models and logs; made if it is not there.
        trials: Trainings of the sweep.
        keep: Leave server and worker up at the end until the user presses Enter.
    """

    def __init__(self, output: Path, *, trials: int, keep: bool) -> None:
        self._output = output.absolute()
        self._trials = trials
        self._keep = keep
        self._console: Console = make_console()

    def run(self) -> int:
        """Show everything, and stop everything.

        Returns:
            The exit code: 0 if all runs completed.

        Raises:
            DemoError: It cannot begin, or it took far too long.
            SandboxError: Something did not start, or ended unexpectedly.
        """
        check_checkout()
        take_folder(self._output)
        self._say(
            f"[bold]prefect-gpu demo.[/] A search for the best of {self._trials} models and a retraining pipeline "
            f"share {DEVICES} devices. They are [bold]virtual devices[/]: they stand in for GPUs, and the trainings, "
            "which are real ones, run on this machine's CPU."
        )
        stage = Stage()
        try:
            return self._play(stage)
        except (DemoError, SandboxError) as error:
            explain(stage.log_ends(), error, self._output)
            raise
        finally:
            try:
                stage.keep_logs(self._output / "logs")
            finally:
                stage.close()
                if self._keep:
                    self._say("Server and worker are stopped.")

    def _play(self, stage: Stage) -> int:
        migrating = "" if MigratedDatabase().is_kept else " and migrating its database, once on this machine"
        for words, step in (
            (f"starting a private Prefect server{migrating}", stage.start_server),
            ("making the work pool `gpus` and starting its worker", stage.start_worker),
            ("deploying the flows of deployments/prefect.yaml", stage.deploy),
        ):
            with timed(self._console, words):
                step()
        self._say(f"Prefect's pages on all of this, while it lasts: [bold]{stage.ui_url}/runs[/]\n")

        rows = self._watch(stage)
        trainings = [row for row in rows if row.devices]
        self._say("")
        self._console.print(results_table(trainings, self._console.width))
        stage.save_history(self._output / "history.db")
        png, html = self._output / "timeline.png", self._output / "timeline.html"
        write_timeline(trainings, png=png, html=html, title="The demo: what the virtual devices did")
        problems = [problem_of(stage, row) for row in rows if row.outcome != "completed"]
        self._say(closing_words(self._output, sweep=self._output / "sweep", pipeline=self._output / "registry"))
        for problem in problems:
            self._console.print(f"\n✗ {problem}", style="red", markup=False, soft_wrap=True)
        if self._keep:
            self._wait_for_user(stage)
        return 1 if problems else 0

    def _watch(self, stage: Stage) -> list[HistoryRow]:
        """Start everything and follow it to its end, until the history knows of each run."""
        sweep = self._output / "sweep"
        main = {
            stage.submit(_SWEEP, trials=self._trials, parallel=_PARALLEL, directory=str(sweep), effort=_EFFORT)
        }  # fmt: skip
        retrained = 0
        shown: set[tuple[str, int]] = set()
        deadline = time.monotonic() + _DEADLINE_S
        devices = [f"virtual-{number}" for number in range(DEVICES)]
        trainings = self._trials + _RETRAININGS
        board = Board(self._console, devices=devices, trainings=trainings, quiet_flows={_SWEEP, _RETRAIN})
        with board:
            while True:
                stage.check()
                runs = look(stage, progress=self._console.is_terminal)
                board.update(runs)
                rows = stage.history()
                for row in rows:
                    if (row.run_id, row.attempt) not in shown:
                        shown.add((row.run_id, row.attempt))
                        board.ended(row)
                known = {row.run_id for row in rows}
                if retrained < _RETRAININGS and not any(run.flow_name == _RETRAIN and not run.final for run in runs):
                    main.add(self._retrain(stage))
                    retrained += 1
                    continue
                if all(run.final and run.run_id in known for run in runs) and main <= {run.run_id for run in runs}:
                    return rows
                if time.monotonic() > deadline:
                    left = ", ".join(f"{run.name} ({run.state})" for run in runs if not run.final)
                    raise DemoError(f"It has not come to its end after {_DEADLINE_S / 60:.0f} minutes. Left: {left}")
                time.sleep(_POLL_S)

    def _retrain(self, stage: Stage) -> str:
        data, registry = str(self._output / "data"), str(self._output / "registry")
        return stage.submit(_RETRAIN, data=data, registry=registry, epochs=_RETRAIN_EPOCHS, deliver=True)

    def _wait_for_user(self, stage: Stage) -> None:
        self._say(
            f"\n[bold]Server and worker are still up.[/] Look around: {stage.ui_url}/runs\n"
            "Or start more there: Deployments, automl-sweep, Run. Press Enter (or Ctrl-C) to stop everything."
        )
        try:
            if (
                sys.stdin is None or not sys.stdin.readline()
            ):  # no terminal to press Enter on: stay until a signal comes
                while True:
                    stage.check()
                    time.sleep(1.0)
        except KeyboardInterrupt:
            self._say("")

    def _say(self, words: str) -> None:
        self._console.print(words, soft_wrap=False)
