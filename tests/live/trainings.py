"""Training flows for the live tests. Each writes one line per execution, so that tests can count them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from prefect import flow, task
from prefect.runtime import flow_run

from prefect_gpu import training_run
from prefect_gpu.training import protocol


def note(word: str) -> None:
    """Append `word run-id` to the file that the test named; one write, so that lines of several runs stay whole."""
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{word} {flow_run.id}\n")


@flow
def plain() -> str:
    """A flow that knows nothing of the pool."""
    note("executed")
    return "done"


@flow
def train(
    steps: int = 3, step_s: float = 0.02, hold: str | None = None, saving_s: float = 0.0, hold_saving: str | None = None
) -> float:
    """Trains for some steps; with `hold`, waits in the first step until that file exists."""
    note("executed")
    with training_run(steps=steps, batch_size=8) as run:
        run.ready()
        for step in run.steps():
            while hold and not Path(hold).exists():
                time.sleep(0.02)
            time.sleep(step_s)
            run.report(loss=1.0 / (step + 1))
    with run.saving():
        time.sleep(saving_s)
        while hold_saving and not Path(hold_saving).exists():
            time.sleep(0.02)
    note("finished")
    return 1.0 / steps


@flow
def computes(until: str) -> None:
    """Keeps a core busy until that file exists."""
    with training_run() as run:
        run.ready()
        while not Path(until).exists():
            end = time.monotonic() + 0.2
            while time.monotonic() < end:
                sum(range(1000))
            run.report(loss=1.0)


@flow(retries=9, retry_delay_seconds=0)
def carries_on(trace: str, steps: int = 60, step_s: float = 0.05, fails_at: int = -1, hurry: str = "") -> None:
    """A deterministic training that saves every few steps, and carries on from its last checkpoint.

    Each step takes as long as is given for one device, half of that on two, and no time once there is the file of
    this name. It adds ``step node pid devices`` to
    the trace. What the steps made of a number, in their order, is its result, in a file beside that.
    """
    import json

    note("executed")
    devices = len(json.loads(os.environ["PREFECT_GPU_DEVICES"]))
    with training_run(steps=steps, checkpoint_every=0.2) as run:
        state = run.restore(lambda path: json.loads(path.read_text()))
        weight = state["weight"] if state else 1.0
        run.step = state["step"] if state else 0
        run.ready()

        def save(path: Path) -> None:
            path.write_text(json.dumps({"weight": weight, "step": run.step}))

        for step in run.steps():
            weight -= 0.1 * weight * (1 + step % 3)
            with open(trace, "a") as file:
                file.write(f"{step} {os.uname().nodename} {os.getpid()} {devices}\n")
            time.sleep(0.0 if hurry and Path(hurry).exists() else step_s / devices)
            run.report(loss=weight, checkpoint=save)
            if step == fails_at:
                os.kill(os.getpid(), signal.SIGKILL)
    with run.saving():
        Path(f"{trace}.result").write_text(repr(weight))
    note("finished")


def _meet(rank: int, count: int) -> list[socket.socket]:
    """Connections of the first instance of a gang with all others, and of each of those with it."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        server = socket.create_server(address)
        return [server.accept()[0] for _ in range(count - 1)]
    while True:
        try:
            return [socket.create_connection(address, timeout=30)]
        except OSError:
            time.sleep(0.05)


class _Peer:
    """Another instance of a gang, which says and hears lists of numbers."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rw")

    def say(self, numbers: list[float]) -> None:
        self._lines.write(json.dumps(numbers) + "\n")
        self._lines.flush()

    def hear(self) -> list[float]:
        """What it said; the gang is broken if it is gone."""
        return json.loads(self._lines.readline())


@flow(retries=9, retry_delay_seconds=0)
def carries_on_together(trace: str, steps: int, step_s: float, hurry: str) -> None:
    """The same as a gang of any size: all meet at the first instance in each step, which is the shorter the more.

    The first one adds ``step node pid instances`` to the trace.
    """
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    peers = _meet(rank, count)
    with training_run(steps=steps, checkpoint_every=0.2) as run:
        state = run.restore(lambda path: json.loads(path.read_text()))
        weight = state["weight"] if state else 1.0
        run.step = state["step"] if state else 0
        run.ready()

        def save(path: Path) -> None:
            path.write_text(json.dumps({"weight": weight, "step": run.step}))

        for step in run.steps():
            for peer in peers:
                peer.sendall(b"x")
            if not all(peer.recv(1) for peer in peers):
                raise RuntimeError("an instance is gone")
            weight -= 0.1 * weight * (1 + step % 3)
            if rank == 0:
                with open(trace, "a") as file:
                    file.write(f"{step} {os.uname().nodename} {os.getpid()} {count}\n")
            time.sleep(0.0 if Path(hurry).exists() else step_s / count)
            run.report(loss=weight, checkpoint=save)
    if rank == 0:
        with run.saving():
            Path(f"{trace}.result").write_text(repr(weight))
        note("finished")


@flow(retries=9, retry_delay_seconds=0)
def learns_together(trace: str, spread: float, hurry: str) -> None:
    """A mean is learned by gradient descent, by a gang of any size that divides the batch which the pool has chosen.

    The samples lie around 3, as far as ``spread`` says: that is how noisy the gradient is. Each instance draws its part
    of the batch. A step takes 20 ms, and 1 ms for each sample of an instance, until there is the file ``hurry``. The
    first instance adds ``step instances batch`` to the trace.
    """
    import random

    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    peers = [_Peer(one) for one in _meet(rank, count)]
    summed = squared = seen = 0.0
    with training_run(steps=10**9, checkpoint_every=0.2) as run:
        state = run.restore(lambda path: json.loads(path.read_text())) or {"weight": -1000.0, "step": 0}
        weight, run.step = state["weight"], state["step"]
        rng = random.Random(f"{rank} {run.step}")
        run.ready()

        def save(path: Path) -> None:
            path.write_text(json.dumps({"weight": weight, "step": run.step}))

        assert run.batch_size is not None
        mine = run.batch_size // count
        for step in run.steps():
            time.sleep(0.02 + 0.001 * mine)
            gradients = [weight - rng.gauss(3.0, spread) for _ in range(mine)]
            told = [sum(gradients), sum(one * one for one in gradients)]
            if rank == 0:
                total, squares = (sum(column) for column in zip(told, *(peer.hear() for peer in peers), strict=True))
                # The weight hardly moves, so the gradient's mean is that of all samples so far.
                summed, squared, seen = summed + total, squared + squares, seen + run.batch_size
                var = (squared - summed**2 / seen) / (seen - 1)
                sqr = (summed / seen) ** 2 - var / seen
                told = [total / run.batch_size, var / sqr if sqr > 0 else -1.0, float(Path(hurry).exists())]
                for peer in peers:
                    peer.say(told)
            else:
                peers[0].say(told)
                told = peers[0].hear()
            mean, scale, enough = told
            weight -= 1e-6 * run.worth * mean
            if scale >= 0:
                run.gradient_noise(scale)
            if enough:
                run.stop("enough")
            if rank == 0:
                with open(trace, "a") as file:
                    file.write(f"{step} {count} {run.batch_size}\n")
            run.report(loss=mean**2, checkpoint=save)
    if rank == 0:
        with run.saving():
            note("finished")


@flow
def eats_memory(mebibytes: int, hold: str = "") -> None:
    """Takes so much main memory; with `hold`, keeps it until that file exists."""
    note("executed")
    held = bytearray(mebibytes << 20)
    if hold:
        held[:: 1 << 12] = bytes(len(held[:: 1 << 12]))  # each page
    while hold and not Path(hold).exists():
        time.sleep(0.05)


@flow
def waits(hold: str) -> None:
    """A flow that needs no device; it goes on until the file exists."""
    note("executed")
    while not Path(hold).exists():
        time.sleep(0.02)


@flow
def watches_its_cores(path: str, hold: str) -> None:
    """Trains until the file exists without a word of how fast, and writes down how many cores it has."""
    note("executed")
    with training_run() as run:
        run.ready()
        while not Path(hold).exists():
            with open(path, "a") as file:
                file.write(f'{{"cores": {run.cores}}}\n')
            time.sleep(0.05)


@flow
def paced(pace: str, steps: int, trace: str = "") -> None:
    """Trains at the pace that stands in a file, in seconds per step; it is read anew again and again.

    With `trace`, each step adds a line to that file.
    """
    note("executed")
    with training_run(steps=steps) as run:
        run.ready()
        for _ in run.steps():
            begun = time.monotonic()
            while (left_s := begun + float(Path(pace).read_text() or 0) - time.monotonic()) > 0:
                time.sleep(min(left_s, 0.1))
            if trace:
                with open(trace, "a") as steps_done:
                    steps_done.write("step\n")


@flow
def stubborn(hold: str) -> None:
    """Ignores SIGTERM, and leaves a grandchild in a session of its own that does so, too."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("executed")
    while not Path(hold).exists():
        time.sleep(0.05)


@flow
def crash(how: str = "kill") -> None:
    """Ends its own process."""
    note("executed")
    print("these are the last words", flush=True)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(how))


@flow(retries=2, retry_delay_seconds=0)
def flaky(how: str = "raise") -> str:
    """Fails in its first two executions, by an exception or by a crash."""
    note("executed")
    mine = f"executed {flow_run.id}\n"
    if Path(os.environ["NOTES"]).read_text().count(mine) <= 2:
        if how == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("not yet")
    return "at last"


def fold(name: str, dies_at: int) -> None:
    """Trains for two steps; dies in the second one where that is the run's try of this number."""
    with training_run(steps=2, checkpoint_every=1e-9) as run:
        note(f"{name}-from-{run.restore(Path.read_text)}")
        for step in run.steps():
            if step == 1 and Path(os.environ["NOTES"]).read_text().count(f"executed {flow_run.id}\n") == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            run.report(loss=1.0, checkpoint=lambda path, step=step: path.write_text(f"{name}-{step}"))


@task(persist_result=True)
def fold_task(name: str, dies_at: int) -> str:
    fold(name, dies_at)
    return name


@flow(retries=3, retry_delay_seconds=0)
def folds() -> None:
    """Trains four times: itself, in two tasks, and itself again. Dies in one of each; then fails, when all is done."""
    note("executed")
    fold("first", 0)
    fold_task("second", 0)
    fold_task("third", 1)
    fold("fourth", 2)
    if Path(os.environ["NOTES"]).read_text().count(f"executed {flow_run.id}\n") == 3:
        raise ValueError("at the end")


@flow
def leaves_a_child(its_pid: str) -> None:
    """Trains, and ends before a process that it has forked."""
    with training_run(steps=1) as run:
        for _ in run.steps():
            run.report()
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    Path(its_pid).write_text(str(child))


def trained(steps: int) -> Iterator[int]:
    """Yields its steps from within its training."""
    with training_run(steps=steps, checkpoint_every=1e-9) as run:
        note(f"from-{run.restore(Path.read_text)}")
        for step in run.steps():
            run.report(loss=1.0, checkpoint=lambda path: path.write_text(str(run.step)))
            yield step


@flow(retries=1, retry_delay_seconds=0)
def reads_a_generator() -> None:
    """Fails after its second step, the first time. Prefect keeps the failure, which keeps the generator open."""
    steps = trained(4)
    for step in steps:
        if step == 1 and flow_run.run_count == 1:
            raise ValueError("not yet")


@flow(retries=1, retry_delay_seconds=0)
def tried_again(hold: str) -> None:
    """Goes on until the file exists, and may be tried twice."""
    note("executed")
    while not Path(hold).exists():
        time.sleep(0.02)
    note("finished")


@flow(retries=1, retry_delay_seconds=0)
def falls_apart(marks: str, first_fails: bool = False) -> str:
    """A gang of two. Once both have begun, instance 1 is killed, at the first try; both note what they come to do.

    Or else the first one fails, which Prefect would try again in its process.
    """
    rank, folder = os.environ["RANK"], Path(marks)
    again = (folder / "killed").exists()
    (folder / f"began-{rank}").touch()
    while not all((folder / f"began-{one}").exists() for one in "01"):
        time.sleep(0.02)
    if again:
        return "together"
    if rank == ("0" if first_fails else "1"):
        (folder / "killed").touch()
        if first_fails:
            raise RuntimeError("these are the last words")
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        time.sleep(600)
    finally:
        (folder / "cleaned-up").touch()
    return "alone"


@flow
def show_environment(path: str) -> None:
    """Writes down what a run sees of its place."""
    import json

    names = ("CUDA_VISIBLE_DEVICES", "PREFECT_GPU_DEVICES", "MARK")
    seen = {name: os.environ.get(name) for name in names} | {
        "cpus": sorted(os.sched_getaffinity(0)),
        "cwd": os.getcwd(),
    }
    Path(path).write_text(json.dumps(seen))


@flow
def touch(path: str) -> None:
    """Makes a file."""
    Path(path).touch()


@flow
def show_all_variables(path: str) -> None:
    """Writes down every variable of its process, those too that the kernel has kept of its start."""
    import json

    at_start = Path("/proc/self/environ").read_text().split("\0")
    Path(path).write_text(json.dumps([dict(os.environ), at_start]))


@flow
def diverge() -> None:
    """Reports a loss that is no number."""
    with training_run(steps=2) as run:
        for _ in run.steps():
            run.report(loss=float("nan"))


@flow
def hungry(mebibytes: int, seed: int = 0, catches: bool = False) -> None:
    """Fills memory in its first step, and then runs out of it; or goes on with less."""
    note("executed")
    with training_run(steps=1) as run:
        run.ready()
        for _ in run.steps():
            held = b"x" * (mebibytes * 2**20)
            try:
                raise MemoryError(f"no room beside {len(held)} bytes")
            except MemoryError as error:
                if not catches:
                    raise
                print(f"MemoryError: {error}; with half of it, then", flush=True)


@flow(retries=1, retry_delay_seconds=0)
def greedy(mebibytes: int, how: str = "raise") -> str:
    """Takes memory while it trains; where that is refused, it fails or, as native code may, dies on the spot."""
    note("executed")
    held = []
    with training_run(steps=2) as run:
        for step in run.steps():
            try:
                held.append(b"x" * (step * mebibytes * 2**20))
            except MemoryError:
                note("refused")
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise
            run.report(loss=1.0 / (step + 1))
    note("finished")
    return "had room"


@flow
def steady(losses: str, until: str) -> int:
    """Trains until a file exists, and 10 steps more; each loss is written down, with the seconds that it waited."""
    note("executed")
    steps, left = 0, 10
    with training_run() as run, open(losses, "w", buffering=1) as written:
        for step in run.steps():
            note("trains") if step == 0 else None
            loss = 1.0 / (step + 1)
            print(step, loss, file=written)
            run.report(loss=loss)
            time.sleep(0.01)
            steps, left = step + 1, left - Path(until).exists()
            if left == 0:
                break
    note("finished")
    return steps


@flow
def curved(still: str, until: str) -> float:
    """Learns in each step, but nothing while the one file exists, until the other one does.

    Always more than in the step before: so its loss comes to a standstill when the file says so, however long the
    machine takes to get there.
    """
    note("executed")
    level = 0.0

    def save(path: Path) -> None:
        path.write_text(str(level))

    with training_run() as run:
        for step in run.steps():
            time.sleep(0.02)
            level -= 0.0 if Path(still).exists() else 0.001 * step
            run.report(loss=level, checkpoint=save)
            if Path(until).exists():
                break
        best = run.best(Path.read_text)
    if best is not None:
        with open(os.environ["NOTES"], "a") as notes:
            notes.write(f"best {flow_run.id} {best}\n")
    return level


@flow
def saves_and_fails() -> None:
    """Saves a checkpoint, and fails."""
    note("executed")
    with training_run(steps=1, checkpoint_every=1e-9) as run:
        for _ in run.steps():
            run.report(loss=1.0, checkpoint=lambda path: path.write_text("weights"))
    raise ValueError("on purpose")


@flow
def babbles(frames: str, hold: str) -> None:
    """Says on its channel what a file holds, the rest of an event on each line, and waits until there is `hold`."""
    from websockets.sync.client import connect

    hello = {"type": "hello", "protocol": protocol.PROTOCOL_VERSION, "session": "babbler"}
    hello |= {"run": os.environ[protocol.ENV_RUN_ID], "token": os.environ[protocol.ENV_TOKEN]}
    with connect(os.environ[protocol.ENV_CHANNEL], proxy=None) as channel:
        channel.send(json.dumps(hello))
        channel.recv()
        for number, line in enumerate(Path(frames).read_text().splitlines(), start=1):
            channel.send(f'{{"type": "event", "seq": {number}, "at": {time.time()}, {line}}}')
            while f'"seq": {number}}}' not in str(channel.recv()):
                pass
        note("said")
        while not Path(hold).exists():
            time.sleep(0.05)
