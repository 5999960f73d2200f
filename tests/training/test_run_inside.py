"""Inside the pool: real sockets, real threads and real processes against the real channel server."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect._flow_run_suspension import FlowRunSuspensionRequest
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.states import Suspended

from prefect_gpu.training import NonFiniteLoss, saver, training_run
from prefect_gpu.training.channel import client, link
from prefect_gpu.training.protocol import (
    CHECKPOINT,
    ENV_CHANNEL,
    ENV_CHANNEL_FILE,
    ENV_GATED,
    ENV_STAYS,
    ENV_TOKEN,
    OPEN_GATE,
    PROGRESS,
    SAVE_CHECKPOINT,
    STOP,
    USAGE,
    USE_CPUS,
)
from tests.training.conftest import as_another_process


def until(condition: Callable[[], Any]) -> None:
    """Wait for the channel's thread."""
    while not condition():
        time.sleep(0.001)


TRAIN = """
    from prefect_gpu.training import training_run

    with training_run(steps=50, batch_size=8, features={"layers": 3}) as run:
        model = run.restore(lambda path: path.read_text()) or "new"
        print(model)
        for step in run.steps():
            run.report(loss=1 / (step + 1), checkpoint=lambda path: path.write_text(str(run.step)), accuracy=0.5)
    with run.saving():
        print(run.step, run.stopped)
"""


def test_a_process_reports_its_phases_progress_and_usage(controller: Any) -> None:
    result = controller.run(TRAIN)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split() == ["new", "50", "None"]
    assert controller.phases == ["preparing", "training", "saving", "finished"]
    assert controller.events[0][1] == {
        "phase": "preparing", "step": 0, "steps": 50, "batch_size": 8, "features": {"layers": 3},
    }  # fmt: skip
    last = controller.data(PROGRESS)[-1]
    assert (last["step"], last["steps"], last["loss"], last["metrics"]) == (50, 50, 0.02, {"accuracy": 0.5})
    assert controller.losses == [[step, 1 / step] for step in range(1, 51)]
    usage = controller.data(USAGE)[0]
    assert usage["rss_peak_bytes"] >= usage["rss_bytes"] > 1_000_000


def test_a_process_without_a_controller_trains_all_the_same(controller: Any) -> None:
    controller.stop()
    result = controller.run(TRAIN)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split() == ["new", "50", "None"]


@pytest.mark.parametrize("address", ["ws://127.0.0.1:1", "http://x", "wss://127.0.0.1:1", "nonsense", "ws://"])
def test_a_wrong_address_harms_nothing(controller: Any, address: str) -> None:
    result = controller.run(TRAIN, **{ENV_CHANNEL: address, ENV_CHANNEL_FILE: "/nowhere"})
    assert (result.returncode, result.stderr) == (0, "")


def test_an_exception_ends_the_process_as_it_would_without_the_pool(controller: Any) -> None:
    result = controller.run(
        """
        from prefect_gpu.training import training_run

        with training_run(steps=5) as run:
            for step in run.steps():
                run.report(loss=float(step))
                if step == 2:
                    raise SystemExit(7)
        """
    )
    assert result.returncode == 7
    assert controller.losses == [[1, 0.0], [2, 1.0], [3, 2.0]]
    assert controller.phases == ["preparing", "training"]


def test_a_diverged_loss_is_shown_and_never_sent_as_a_number(pool: Any) -> None:
    with pytest.raises(NonFiniteLoss):
        with training_run(steps=5) as run:
            for _ in run.steps():
                run.report(loss=float("nan") if run.step == 1 else 1.0, f1=float("nan"))
    pool.wait_for(lambda: any("nonfinite_step" in data for data in pool.data(PROGRESS)))
    last = pool.data(PROGRESS)[-1]
    assert last["nonfinite_step"] == 2 and "loss" not in last and last["metrics"] == {"f1": None}


def test_a_second_training_goes_on_with_the_same_connection(pool: Any) -> None:
    threads = set()
    for steps in (2, 3):
        with training_run(steps=steps) as run:
            for _ in run.steps():
                run.report(loss=1.0)
        with run.saving():
            threads |= {thread for thread in threading.enumerate() if thread.name == "prefect-gpu-channel"}
    assert len(threads) == 1
    assert pool.phases == ["preparing", "training", "saving", "finished"] * 2
    assert [point[0] for point in pool.losses] == [1, 2, 1, 2, 3]


def test_a_training_in_another_thread_reports(pool: Any) -> None:
    def train() -> None:
        with training_run(steps=2) as run:
            for _ in run.steps():
                run.report(loss=1.0)
        with run.saving():
            pass

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert pool.phases == ["preparing", "training", "saving", "finished"]


def test_a_training_in_parallel_to_the_reporting_one_is_passive(pool: Any, caplog: pytest.LogCaptureFixture) -> None:
    with training_run(steps=1) as run:

        def other() -> None:
            with training_run(steps=2) as passive:
                for _ in passive.steps():
                    passive.report(loss=9.0)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        for _ in run.steps():
            run.report(loss=1.0)
    with run.saving():
        pass
    assert pool.losses == [[1, 1.0]] and "not reported" in caplog.text


def test_the_gate_holds_training_back_until_it_is_opened(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_GATED, "1")
    with training_run(steps=1) as run:
        opener = threading.Thread(
            target=lambda: (pool.wait_for(lambda: "preparing*" in pool.phases), pool.instruct(OPEN_GATE))
        )
        opener.start()
        run.ready()
        opener.join()
    with run.saving():
        pass
    assert pool.phases == ["preparing", "preparing*", "training", "saving", "finished"]


def test_a_gate_opened_before_the_run_connects_is_open(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_GATED, "1")
    assert pool.instruct(OPEN_GATE) is False
    with training_run(steps=1) as run:
        run.ready()
    with run.saving():
        pass
    assert pool.phases[-3:] == ["training", "saving", "finished"]


def test_a_stop_at_the_gate_leaves_it_without_a_step(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_GATED, "1")
    pool.instruct(STOP, reason="not needed any more")
    with training_run(steps=1) as run:
        assert list(run.steps()) == []
    assert run.stopped == "not needed any more"


def test_a_gated_run_that_reaches_nobody_goes_on_after_a_bounded_wait(
    pool: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool.stop()
    monkeypatch.setenv(ENV_GATED, "1")
    monkeypatch.setattr(link.wait_at_gate, "__defaults__", (0.2,))
    with training_run(steps=1) as run:
        assert list(run.steps()) == [0]
    assert "out of reach" in caplog.text


def test_stop_saves_and_ends_the_loop(pool: Any) -> None:
    with training_run() as run:
        for step in run.steps():
            if step == 3:
                pool.instruct(STOP, reason="budget used up")
                until(lambda: run._mailbox.pending)
            run.report(loss=1.0, checkpoint=lambda path: path.write_text(str(run.step)))
    assert (run.step, run.stopped, run.stop_requested) == (4, "budget used up", True)
    pool.wait_for(lambda: pool.data(CHECKPOINT))
    (event,) = pool.data(CHECKPOINT)
    assert (event["step"], event["bytes"], Path(event["path"]).read_text()) == (4, 1, "4")
    as_another_process()
    with training_run(steps=9) as again:
        assert again.restore(Path.read_text) == "4" and again.step == 4


def test_stop_waits_for_a_step_that_offers_a_checkpoint(pool: Any) -> None:
    with training_run(steps=100) as run:
        for step in run.steps():
            if step == 1:
                pool.instruct(STOP, reason="enough")
                until(lambda: run._mailbox.pending)
            run.report(loss=1.0, checkpoint=(lambda path: path.write_text("x")) if step % 10 == 0 else None)
    assert run.step == 11


def test_stop_ends_a_loop_without_checkpoints_or_reports_at_once(pool: Any) -> None:
    with training_run(steps=100) as run:
        for step in run.steps():
            if step == 1:
                pool.instruct(STOP)
                until(lambda: run._mailbox.pending)
    assert run.step == 2 and run.stop_requested


def test_a_checkpoint_on_request_is_saved_once(pool: Any) -> None:
    with training_run(steps=6) as run:
        for step in run.steps():
            if step == 2:
                pool.instruct(SAVE_CHECKPOINT, reason="to move")
                until(lambda: run._mailbox.pending)
            run.report(checkpoint=(lambda path: path.mkdir() or (path / "a").write_text("x")) if step > 3 else None)
    with run.saving():
        pass
    assert [event["step"] for event in pool.data(CHECKPOINT)] == [5]


def test_nothing_is_done_between_the_checkpoint_on_request_and_the_stop(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "ENDS_WITHIN_S", 60.0)
    seen: list[int] = []

    def stop() -> None:
        pool.wait_for(lambda: pool.data(CHECKPOINT))
        time.sleep(0.1)  # the training could do a thousand steps
        seen.append(run.step)
        pool.instruct(STOP)

    stopper = threading.Thread(target=stop)
    with training_run(steps=1_000_000) as run:
        for step in run.steps():
            if step == 2:
                stopper.start()
                pool.instruct(SAVE_CHECKPOINT, reason="to move")
                until(lambda: run._mailbox.pending)
            run.report(checkpoint=lambda path: path.write_text("x"))
    stopper.join()
    first, *_ = pool.data(CHECKPOINT)
    assert seen == [first["step"]] == [3] and "last" not in first


def test_a_checkpoint_that_is_under_way_when_one_is_asked_for_is_the_one(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "ENDS_WITHIN_S", 60.0)

    def save(path: Path) -> None:
        if run.step == 2:
            pool.instruct(SAVE_CHECKPOINT, reason="to move")
            until(lambda: run._mailbox.save is not None)
        path.write_text("x")

    stopper = threading.Thread(
        target=lambda: (pool.wait_for(lambda: len(pool.data(CHECKPOINT)) == 2), pool.instruct(STOP))
    )
    stopper.start()
    with training_run(checkpoint_every=1e-9) as run:
        for step in run.steps():
            run.report(checkpoint=save)
            if step == 1:
                assert run._mailbox.stop is not None  # until then it did nothing
    stopper.join()
    first, second, *_ = pool.data(CHECKPOINT)
    assert first["unasked"] is True and "unasked" not in second and (first["step"], second["step"]) == (1, 2)


def test_a_checkpoint_of_the_last_step_says_that_nobody_need_be_stopped(pool: Any) -> None:
    pool.instruct(SAVE_CHECKPOINT)
    with training_run(steps=1) as run:
        until(lambda: run._mailbox.pending)
        for _ in run.steps():
            run.report(checkpoint=lambda path: path.write_text("x"))
    with run.saving():
        pass
    (event,) = pool.data(CHECKPOINT)
    assert event["step"] == 1 and event["last"] is True


def test_a_checkpoint_that_failed_is_told_to_who_asked(pool: Any) -> None:
    pool.instruct(SAVE_CHECKPOINT)
    with training_run(steps=1) as run:
        until(lambda: run._mailbox.pending)
        for _ in run.steps():
            run.report(checkpoint=lambda path: None)
    with run.saving():
        pass
    (event,) = pool.data(CHECKPOINT)
    assert event["step"] == 1 and "saved nothing" in event["error"]


def test_cores_change_while_running(controller: Any) -> None:
    cores = sorted(os.sched_getaffinity(0))
    process = controller.popen(
        """
        import os, threading
        import numpy, threadpoolctl
        from prefect_gpu.training import training_run

        with training_run(steps=1) as run:
            while not run._mailbox.pending:
                pass
            for _ in run.steps():
                run.report()
            print(*sorted(os.sched_getaffinity(0)))
            print({pool["num_threads"] for pool in threadpoolctl.threadpool_info()})
        """
    )
    controller.instruct(USE_CPUS, cpus=[cores[-1]])
    out, err = process.communicate(timeout=600)
    assert out.splitlines() == [str(cores[-1]), "{1}"], err


@pytest.mark.parametrize("cpus", [[], "0", [-1], [10**12], None, [True]])
def test_senseless_cores_are_ignored(pool: Any, cpus: Any) -> None:
    before = os.sched_getaffinity(0)
    with training_run(steps=1) as run:
        run._mailbox.put(USE_CPUS, {"cpus": cpus})
        for _ in run.steps():
            run.report()
    assert os.sched_getaffinity(0) == before


def test_a_worker_that_dies_and_comes_back_elsewhere_misses_nothing(controller: Any) -> None:
    process = controller.popen(
        """
        import sys
        from prefect_gpu.training import training_run

        with training_run(steps=40) as run:
            for step in run.steps():
                if step % 10 == 0:
                    print(step, flush=True)
                    sys.stdin.readline()
                run.report(loss=float(step))
        with run.saving():
            pass
        """
    )
    ports = set()
    for _ in range(4):
        process.stdout.readline()
        ports.add(controller.server.url)
        controller.stop()  # between reports, and while nobody knows
        process.stdin.write("\n")
        process.stdin.flush()
        controller.start()
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert len(ports) > 1
    assert [step for step, _ in controller.losses] == list(range(1, 41))
    assert controller.phases == ["preparing", "training", "saving", "finished"]


def test_a_connection_cut_again_and_again_loses_and_repeats_nothing(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PROGRESS_SECONDS", 0.001)  # many small events
    monkeypatch.setattr(client, "BACKOFF_SECONDS", (0.001, 0.01))
    with training_run(steps=2000) as run:
        for step in run.steps():
            run.report(loss=float(step))
            if step % 100 == 50:  # what a channel that is cut can hold is bounded: 256 events
                pool.wait_for(lambda step=step: len(pool.losses) > step - 50)
                pool.cut()
    with run.saving():
        pass
    pool.wait_for(lambda: "finished" in pool.phases)
    assert [step for step, _ in pool.losses] == list(range(1, 2001))
    assert pool.phases == ["preparing", "training", "saving", "finished"]


def test_a_controller_that_stops_answering_is_left_and_found_again(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(client, "SAMPLE_SECONDS", 0.02)
    hung = threading.Event()
    pool.before_event = lambda: hung.wait(60)
    with training_run(steps=3) as run:
        channel = run._client
        until(lambda: channel.connected)
        until(lambda: not channel.connected)  # gave up on it
        hung.set()
        for _ in run.steps():
            run.report(loss=1.0)
    with run.saving():
        pass
    pool.wait_for(lambda: "finished" in pool.phases)
    assert pool.phases == ["preparing", "training", "saving", "finished"]
    assert [step for step, _ in pool.losses] == [1, 2, 3]


def test_a_process_whose_token_is_not_the_runs_any_more_ends_before_it_can_fail(controller: Any) -> None:
    result = controller.run(
        """
        from prefect_gpu.training import training_run

        with training_run(steps=4):
            raise RuntimeError("nobody wants to know")
        """,
        **{ENV_TOKEN: "that of the launch before"},
    )
    assert result.returncode == -signal.SIGKILL and "given this process up" in result.stderr
    assert "nobody wants to know" not in result.stderr and controller.events == []


def test_a_second_process_with_the_same_token_is_refused(controller: Any) -> None:
    assert controller.run(TRAIN).returncode == 0
    first = list(controller.events)
    result = controller.run(TRAIN)
    assert result.returncode == 0 and "another process" in result.stderr
    assert controller.events == first


def test_a_second_process_saves_nothing_once_it_is_refused(controller: Any) -> None:
    """The first one saves in the same place, and each would remove what the other is writing."""
    assert controller.run(TRAIN).returncode == 0
    result = controller.run(
        """
        import time
        from prefect_gpu.training import training_run

        with training_run(steps=1, checkpoint_every=1e-9, keep_best=True) as run:
            for _ in run.steps():
                while run._client.refused is None:
                    time.sleep(0.01)
                run.report(loss=0.0, checkpoint=lambda path: path.write_text("second"))
        """
    )
    assert result.returncode == 0 and "saves no checkpoints" in result.stderr
    assert not [path for path in controller.checkpoints.rglob("*") if path.is_file() and "second" in path.read_text()]


def test_a_forked_child_neither_reports_nor_breaks_its_parent(controller: Any) -> None:
    result = controller.run(
        """
        import os, warnings
        from prefect_gpu.training import training_run

        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns whoever forks beside a thread
        with training_run(steps=4) as run:
            for step in run.steps():
                run.report(loss=float(step))
                if step == 1:
                    pid = os.fork()
                    if pid == 0:
                        for _ in range(1000):
                            run.report(loss=99.0)
                        os._exit(0)
                    assert os.waitpid(pid, 0)[1] == 0
        with run.saving():
            pass
        """
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert controller.losses == [[1, 0.0], [2, 1.0], [3, 2.0], [4, 3.0]]
    assert controller.phases[-1] == "finished"


def test_a_child_of_multiprocessing_reports_all_that_it_has_done(controller: Any) -> None:
    result = controller.run(
        """
        import multiprocessing, sys
        from prefect_gpu.training import training_run

        def train():
            with training_run(steps=3) as run:
                for step in run.steps():
                    run.report(loss=float(step))

        child = multiprocessing.get_context("fork").Process(target=train)
        child.start()
        child.join()
        sys.exit(child.exitcode)
        """
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert controller.losses == [[1, 0.0], [2, 1.0], [3, 2.0]]


def test_a_forked_child_ends_well_beside_what_prefect_waits_for_at_the_end(controller: Any) -> None:
    """PyTorch ends a training of which a data-loader worker exits with anything but 0."""
    result = controller.run(
        """
        import multiprocessing, warnings
        from prefect._internal.concurrency.services import QueueService
        from prefect_gpu.training import training_run

        class Logs(QueueService):  # what sends a flow's logs is one
            async def _handle(self, item):
                print(item)

        def fork():
            child = multiprocessing.get_context("fork").Process(target=int)
            child.start()
            child.join()
            return child.exitcode

        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns whoever forks beside a thread
        Logs.instance().send("sent in the end")
        print("before the training, a child ends with", fork())
        with training_run(steps=1) as run:
            for step in run.steps():
                print("in its loop, a child ends with", fork())
        """
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(result.stdout.splitlines()) == [
        "before the training, a child ends with 0",
        "in its loop, a child ends with 0",
        "sent in the end",
    ]


def test_a_process_forked_from_a_warm_interpreter_is_a_run_like_any_other(controller: Any) -> None:
    result = controller.run(
        """
        import os, sys
        import prefect_gpu.training, prefect_gpu.training.channel.client, prefect_gpu.training.channel.wire

        pid = os.fork()
        if pid:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        with prefect_gpu.training.training_run(steps=2) as run:
            for _ in run.steps():
                run.report(loss=1.0)
        with run.saving():
            pass
        """
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert controller.phases == ["preparing", "training", "saving", "finished"]


@pytest.mark.parametrize("stays", ["", "1"])
@pytest.mark.parametrize("in_saving", [False, True])
def test_a_run_that_is_done_before_its_suspension_comes_to_anything_keeps_its_result(
    in_saving: bool, stays: str, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's engine would end it as suspended, and drop what it returns: resumed, it did its work again."""
    monkeypatch.setenv(ENV_STAYS, stays)
    request = FlowRunSuspensionRequest()
    with FlowRunContext.model_construct(flow_run_suspension_request=request):
        with training_run(steps=1) as run:
            for _ in run.steps():
                run.report()
            if not in_saving:
                request.mark_requested(Suspended())
        with run.saving():
            if in_saving:
                request.mark_requested(Suspended())
    request.raise_if_requested()


def test_a_run_that_fails_or_has_done_no_step_stays_suspended(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = FlowRunSuspensionRequest()
    with FlowRunContext.model_construct(flow_run_suspension_request=request):
        with training_run(steps=1):
            request.mark_requested(Suspended())
        assert request.is_requested()
        monkeypatch.setenv(ENV_STAYS, "1")
        with pytest.raises(Pause), training_run(steps=1):
            request.raise_if_requested()  # as a run does that has suspended itself
    assert request.is_requested()
