"""The cluster demo from its beginning to its end."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from prefect_gpu.cli.common import console as make_console
from prefect_gpu.demo.board import Board, Seen
from prefect_gpu.demo.cluster.outage import LostNode, Places
from prefect_gpu.demo.cluster.stage import ClusterStage
from prefect_gpu.demo.cluster.table import closing_words, results_table
from prefect_gpu.demo.common import DemoError, check_checkout, explain, look, problem_of, take_folder, timed
from prefect_gpu.lab import checkout
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.lab.sandbox import Process, Sandbox, SandboxError, undisturbed
from prefect_gpu.reporting.timeline import write_timeline
from prefect_gpu.storage.row import HistoryRow

NODES = 3
DEVICES = 2  # of each node
_INSTANCES = 3  # of the gang: more than one node has devices
_GANG, _SWEEP = "train-side-by-side", "automl-sweep"
_PARALLEL = 5  # trials: with the gang more than there is room for, so that runs wait
_EFFORT = 15.0
_EPOCHS = 80
_LEAST_EPOCH_S = 0.5  # the gang must not be over before its node is lost, however fast the machine is
_POLL_S = 0.4
_UNCERTAIN_S = 4.0
_DEADLINE_S = 900.0
_WORKSHOP = Path("/var/tmp")  # sockets have short paths


class ClusterShow:
    """One demo.

    Args:
        output: Folder for pictures, models and logs; made if it is not there.
        trials: Trainings of the sweep.
        prefix, subnet: See :class:`.Lab`.
    """

    def __init__(self, output: Path, *, trials: int, prefix: str, subnet: str) -> None:
        self._output = output.absolute()
        self._trials = trials
        self._prefix, self._subnet = prefix, subnet
        self._folder = _WORKSHOP / f"prefect-gpu-{prefix}"
        self._console: Console = make_console()
        self._launched: set[tuple[str, int]] = set()  # runs and tries

    def run(self) -> int:
        """Show everything, and stop everything.

        Returns:
            The exit code: 0 if all runs completed, some of them in spite of the lost node.

        Raises:
            DemoError: It cannot begin, or it took far too long.
            SandboxError: Something did not start, or ended unexpectedly.
        """
        check_checkout()
        check_machine()
        take_folder(self._output)
        self._say(
            f"[bold]prefect-gpu cluster demo.[/] {NODES} nodes with {DEVICES} [bold]virtual devices[/] each, which "
            f"stand in for GPUs: a search for the best of {self._trials} models and a gang of {_INSTANCES} instances "
            "share them. Each node is a Docker Engine in a network namespace of this machine, and each run is a "
            "container. The trainings are real ones, on this machine's CPU. On the way, one node is lost."
        )
        with self._alone(), contextlib.ExitStack() as stack:
            try:
                return self._play(stack)
            finally:
                with undisturbed(), timed(self._console, "stopping everything"):
                    stack.close()

    def _play(self, stack: contextlib.ExitStack) -> int:
        made = "" if checkout.image_is_made() else ", and a small Debian image for them, which takes a while once"
        labels = {"prefect-gpu.virtual-devices": str(DEVICES), "prefect-gpu.virtual-device-memory": "4GiB"}
        with timed(self._console, f"making {NODES} Docker nodes and a Swarm of them{made}"):
            lab = stack.enter_context(
                checkout.started(
                    self._folder / "lab", nodes=NODES, prefix=self._prefix, subnet=self._subnet, labels=labels
                )
            )
        stage = ClusterStage(lab, self._folder / "prefect", self._output)
        stack.callback(stage.close)
        stack.callback(stage.keep_logs, self._output / "logs")
        try:
            for words, step in (
                ("starting a private Prefect server", stage.start_server),
                ("making the work pool `gpus` and starting its worker, with the driver `swarm`", stage.start_worker),
                ("deploying the flows of deployments/prefect.yaml", stage.deploy),
            ):
                with timed(self._console, words):
                    step()
            self._say(f"Prefect's pages on all of this, while it lasts: [bold]{stage.ui_url}/runs[/]\n")
            return self._train(stage, lab)
        except (DemoError, SandboxError) as error:
            explain(stage.log_ends(), error, self._output)
            raise

    def _train(self, stage: ClusterStage, lab: Lab) -> int:
        gang = stage.submit(
            _GANG, {"workers": _INSTANCES}, model_path=str(self._output / "gang.npz"), epochs=_EPOCHS,
            least_epoch_s=_LEAST_EPOCH_S, checkpoint_every=2.0,
        )  # fmt: skip
        sweep = stage.start_sweep(
            trials=self._trials, parallel=_PARALLEL, directory=str(self._output / "sweep"), effort=_EFFORT
        )
        lost = LostNode(lab, gang)
        runs, rows = self._watch(stage, lab, lost, sweep)
        self._say("")
        results = stage.results({row.run_id for row in rows})
        self._console.print(results_table(rows, results))
        stage.save_history(self._output / "history.db")
        write_timeline(
            rows, png=self._output / "timeline.png", html=self._output / "timeline.html",
            title="The cluster demo: what the nodes' virtual devices did",
            outages=[lost.outage] if lost.outage is not None else [],
        )  # fmt: skip
        problems = self._problems(stage, runs, rows, lost, sweep)
        self._say(closing_words(self._output, rows, lost.name))
        for problem in problems:
            self._console.print(f"\n✗ {problem}", style="red", markup=False, soft_wrap=True)
        return 1 if problems else 0

    def _watch(
        self, stage: ClusterStage, lab: Lab, lost: LostNode, sweep: Process
    ) -> tuple[list[Seen], list[HistoryRow]]:
        """Follow everything to its end, until the history knows of each run."""
        shown: set[tuple[str, int]] = set()
        deadline = time.monotonic() + _DEADLINE_S
        devices = {f"{node.name}/virtual-{number}": node.name for node in lab.nodes for number in range(DEVICES)}
        board = Board(self._console, devices=devices, trainings=self._trials + 1, quiet_flows={_SWEEP})
        with board:
            while True:
                stage.check()
                searching = sweep.popen.poll() is None
                # In this order: a run that crashed is brought back to its queue before its place is forgotten. The
                # other way round, one could see it crashed, and then nowhere.
                places = self._look_where(stage)
                runs = look(stage)
                saved = {run for run in places if stage.has_checkpoint(run)}
                if done := lost.look(runs, places, saved):
                    board.say(done)
                board.update(runs, [device for device, node in devices.items() if lost.is_away and node == lost.name])
                rows = stage.history()
                ended = {run.run_id for run in runs if run.final}
                for row in rows:
                    if (row.run_id, row.attempt) not in shown and _is_certain(row):
                        shown.add((row.run_id, row.attempt))
                        board.ended(row, goes_on=row.outcome != "completed" and row.run_id not in ended)
                known = {(row.run_id, row.attempt) for row in rows}
                over = not searching and not places and all(run.final for run in runs)
                if over and self._launched <= known:
                    return runs, rows
                if time.monotonic() > deadline:
                    left = ", ".join(f"{run.name} ({run.state}: {run.why})" for run in runs if not run.final)
                    raise DemoError(f"It has not come to its end after {_DEADLINE_S / 60:.0f} minutes. Left: {left}")
                time.sleep(_POLL_S)

    def _look_where(self, stage: ClusterStage) -> dict[str, Places]:
        """Where the runs are that have been launched."""
        found = {}
        for run, record in stage.records().items():
            devices: dict[str, tuple[str, ...]] = defaultdict(tuple)
            for part in record.placement.parts:
                devices[part.node] += part.devices
            found[run] = tuple(devices.items())
            self._launched.add((run, record.attempt))
        return found

    def _problems(
        self, stage: ClusterStage, runs: list[Seen], rows: list[HistoryRow], lost: LostNode, sweep: Process
    ) -> list[str]:
        """What did not go as it should: each run must have completed, and some of them lost their node before."""
        last = {row.run_id: row for row in rows}  # they are in the order of their tries
        found = [problem_of(stage, last[run.run_id]) for run in runs if run.run_id in last and run.state != "Completed"]
        found += [f"{run.name}: {run.state}, {run.why}" for run in runs if run.run_id not in last and not _good(run)]
        if len(last) != self._trials + 1:
            found.append(f"{len(last)} trainings have run, and not {self._trials + 1}.")
        if sweep.popen.returncode:
            found.append(f"The sweep ended with {sweep.popen.returncode}:\n{sweep.output[-2000:]}")
        if lost.outage is None:
            found.append("No node was lost: the gang was over before all runs beside it had a checkpoint.")
        found += [
            f"{last[run].run_name} was on {lost.name} when that was lost, and was not tried again."
            for run in lost.begun if run in last and last[run].attempt == 1
        ]  # fmt: skip
        return found

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Two demos on one machine would take each other's nodes. What a killed one left is stopped first.

        Raises:
            DemoError: Another one runs.
        """
        with open(f"{self._folder}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DemoError(
                    f"Another cluster demo with the prefix {self._prefix} runs on this machine: wait for it, or give "
                    "this one --prefix and --subnet of its own."
                ) from None
            try:
                Sandbox(self._folder / "prefect").close()
                shutil.rmtree(self._folder / "prefect", ignore_errors=True)
                yield
            finally:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _say(self, words: str) -> None:
        self._console.print(words)


def check_machine() -> None:
    """Make sure that this machine can be several nodes.

    Raises:
        DemoError: It cannot; the message names all that it lacks.
    """
    lacking = checkout.missing()
    if not lacking:
        return
    *others, last = lacking
    words = f"{', '.join(others)} and {last}" if others else last
    remedies = []
    if any(word.startswith("the program") for word in lacking):
        remedies.append(f"On Debian and Ubuntu: apt-get install {' '.join(checkout.DEBIAN_PACKAGES)}")
    if "root's rights" in lacking:
        remedies.append("Run it as root: sudo make cluster-demo")
    raise DemoError("\n".join([f"It makes Docker nodes on this machine, which lacks {words}.", *remedies]))


def _is_certain(row: HistoryRow) -> bool:
    """Whether it can be said by now if a run that has not completed is tried again."""
    return row.outcome == "completed" or time.time() > row.ended_at + _UNCERTAIN_S


def _good(run: Seen) -> bool:
    return run.final and run.state == "Completed"
