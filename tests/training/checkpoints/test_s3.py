"""Checkpoints in S3, against a real server: only a complete and undamaged one is ever used."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ResponseStreamingError

from prefect_gpu.runtime.checkpoints import RunCheckpoints
from prefect_gpu.training.best import BestKeeper
from prefect_gpu.training.checkpoints import CheckpointError
from prefect_gpu.training.checkpoints.location import S3Location
from prefect_gpu.training.checkpoints.s3 import PART_BYTES, S3CheckpointStore
from tests.radosgw import BUCKET, S3Server


@pytest.fixture
def store(s3: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3CheckpointStore:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return S3CheckpointStore(S3Location(BUCKET, request.node.name, s3.endpoint_url))


_others: list[S3CheckpointStore] = []  # what a store has fetched is there as long as the store is


def again(store: S3CheckpointStore) -> S3CheckpointStore:
    """The same store, seen from another process."""
    _others.append(S3CheckpointStore(store.location))
    return _others[-1]


def keys(store: S3CheckpointStore) -> list[str]:
    return [found.name for found in store._keys("")]


def save_text(text: str) -> Any:
    return lambda path: path.write_text(text)


def save_folder(path: Path) -> None:
    (path / "deep" / "er").mkdir(parents=True)
    (path / "a.txt").write_text("a")
    (path / "deep" / "er" / "b.bin").write_bytes(b"b" * 3)
    (path / "empty").touch()


def test_nothing_saved_is_nothing_restored(store: S3CheckpointStore) -> None:
    assert store.restore() is None


def test_a_file_comes_back_elsewhere(store: S3CheckpointStore) -> None:
    saved = store.save(save_text("weights"), 7, 0.5)
    found = again(store).restore()
    assert found is not None and found.path.read_text() == "weights"
    assert (found.step, found.loss, found.size_bytes, found.kept_at) == (7, 0.5, 7, saved.kept_at)


def test_a_folder_comes_back(store: S3CheckpointStore) -> None:
    store.save(save_folder, 1)
    found = again(store).restore()
    assert found is not None
    assert (found.path / "deep" / "er" / "b.bin").read_bytes() == b"bbb" and (found.path / "empty").exists()


def test_folders_with_nothing_in_them_come_back(store: S3CheckpointStore) -> None:
    def save(path: Path) -> None:
        (path / "assets" / "none yet").mkdir(parents=True)
        (path / "weights").write_text("w")

    store.save(save, 1)
    found = again(store).restore()
    assert found is not None and (found.path / "weights").read_text() == "w"
    assert list((found.path / "assets").iterdir()) == [found.path / "assets" / "none yet"]
    store.save(Path.mkdir, 2)
    found = again(store).restore()
    assert found is not None and found.path.is_dir() and not list(found.path.iterdir())


def test_a_large_file_is_sent_in_parts(store: S3CheckpointStore) -> None:
    content = os.urandom(2 * PART_BYTES + 17)
    store.save(lambda path: path.write_bytes(content), 1)
    found = again(store).restore()
    assert found is not None and found.path.read_bytes() == content


def test_two_are_kept_and_nothing_else(store: S3CheckpointStore) -> None:
    for step in range(1, 5):
        store.save(save_text(str(step)), step)
    names = keys(store)
    assert sorted(name for name in names if name.startswith("commits")) == [
        "commits/00000003.json",
        "commits/00000004.json",
    ]
    assert len([name for name in names if name.startswith("data")]) == 2


def test_a_saving_function_that_fails_leaves_the_previous_one(store: S3CheckpointStore) -> None:
    store.save(save_text("good"), 1)
    with pytest.raises(ZeroDivisionError):
        store.save(lambda path: 1 / 0, 2)
    with pytest.raises(CheckpointError, match="saved nothing"):
        store.save(lambda path: None, 2)
    found = again(store).restore()
    assert found is not None and found.step == 1


@pytest.mark.parametrize("damage", ["content", "missing", "manifest"])
def test_a_damaged_one_is_not_used_but_the_one_before(
    store: S3CheckpointStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(save_text("first"), 1)
    store.save(save_text("second"), 2)
    manifest = store._manifest(2)
    target = "commits/00000002.json" if damage == "manifest" else f"{manifest.place}/checkpoint"
    client = store._client
    if damage == "missing":
        client.delete_object(Bucket=BUCKET, Key=store._key(target))
    else:
        client.put_object(Bucket=BUCKET, Key=store._key(target), Body=b"secund")
    found = again(store).restore()
    assert found is not None and found.path.read_text() == "first"
    assert "is damaged and will not be used" in caplog.text


def test_a_commit_is_never_written_over(store: S3CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that save at once: each checkpoint is whole, and one of them is the newest."""
    other = again(store)
    store.save(save_text("ours"), 1)
    known = other._commits
    answers = [[], known]  # the first look was before we had saved

    def seen() -> list[int]:
        answer = answers.pop(0) if answers else known
        return answer() if callable(answer) else answer

    monkeypatch.setattr(other, "_commits", seen)
    other.save(save_text("theirs"), 1)
    assert sorted(store._commits()) == [1, 2]
    found = again(store).restore()
    assert found is not None and found.path.read_text() == "theirs"


def test_wrong_credentials_are_an_error_that_says_so(store: S3CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(CheckpointError, match="AWS_SECRET_ACCESS_KEY does not belong"):
        again(store).restore()


def test_a_server_that_is_away_is_an_error_and_no_new_beginning(store: S3CheckpointStore) -> None:
    away = S3CheckpointStore(S3Location(BUCKET, "x", "http://127.0.0.1:9"))
    with pytest.raises(CheckpointError, match="out of reach"):
        away.restore()


def test_all_of_it_can_be_removed(store: S3CheckpointStore) -> None:
    store.save(save_folder, 1)
    store.remove()
    assert keys(store) == [] and store.restore() is None


def test_what_it_holds_says_the_newest_change_and_the_pool(store: S3CheckpointStore) -> None:
    assert store.holding() is None
    for pool in ("first", "second"):  # it has been moved
        S3CheckpointStore(store.location, pool=pool).save(save_folder, 1)
    best = S3CheckpointStore(store.location.below("best-loss"))
    best.save(save_text("best"), 1)
    held, client = store.holding(), store._client
    newest = max(found.changed_at for found in best._keys(""))
    assert held is not None and (held.pool, held.changed_at) == ("second", newest)
    client.put_object(Bucket=BUCKET, Key=store._key("best-loss/notes"), Body=b"irreplaceable")
    assert store.holding() is None
    store.remove()
    assert keys(store) == ["best-loss/notes"]


def test_what_later_trainings_have_saved_is_the_runs_too(store: S3CheckpointStore) -> None:
    later = store.location.below("training-2")
    S3CheckpointStore(later, pool="ours").save(save_folder, 1)
    S3CheckpointStore(later.below("best")).save(save_text("best"), 1)
    held = store.holding()
    assert held is not None and held.pool == "ours"
    store.remove()
    assert keys(store) == []


def test_a_removal_that_is_cut_off_goes_on_another_day(
    store: S3CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_gpu.training.checkpoints.s3._MOST_AT_ONCE", 10)
    store = S3CheckpointStore(store.location, pool="ours")
    store.save(lambda path: path.mkdir() or [(path / str(file)).touch() for file in range(15)], 1)
    calls: list[str] = []

    def cut(**_: Any) -> None:
        calls.append("")
        if len(calls) == 3:  # the commit and ten files are gone
            raise EndpointConnectionError(endpoint_url="")

    store._client.meta.events.register("before-call.s3.DeleteObjects", cut)
    with pytest.raises(CheckpointError, match="out of reach"):
        store.remove()
    assert len(keys(store)) == 6
    held = again(store).holding()
    assert held is not None and held.pool == "ours"
    store.remove()
    assert keys(store) == []


def test_what_the_server_keeps_is_said(store: S3CheckpointStore) -> None:
    store.save(save_text("weights"), 1)
    kept = f"arn:aws:s3:::{BUCKET}/{store._key('commits')}/*"
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": kept}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    store._client.put_bucket_policy(Bucket=BUCKET, Policy=policy)
    try:
        with pytest.raises(CheckpointError, match=r"keeps 1 objects, such as .*00000001\.json \(AccessDenied\)"):
            store.remove()
    finally:
        store._client.delete_bucket_policy(Bucket=BUCKET)


@pytest.mark.usefixtures("store")
def test_a_bucket_that_is_out_of_reach_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    place = RunCheckpoints(f"s3://{BUCKET}/x?endpoint_url=http://127.0.0.1:9", logging.getLogger("tests"))
    assert list(place.leftovers()) == []
    assert "Whether old runs have left checkpoints is not known" in caplog.text


def test_a_server_that_takes_data_and_goes_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setattr("prefect_gpu.training.checkpoints.s3._SILENT_S", 0.2)
    monkeypatch.setattr("prefect_gpu.training.checkpoints.s3._PATIENCE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = S3Location(BUCKET, "x", f"http://127.0.0.1:{silent.getsockname()[1]}", "any")
        with pytest.raises(CheckpointError, match=r"out of reach: the server has not answered for .* s\. Check that"):
            S3CheckpointStore(place).save(save_text("weights"), 1)


SAVES = """
    import os, sys
    import boto3  # once, and not for each kill
    from prefect_gpu.training.checkpoints import open_store

    def saves():
        store = open_store(sys.argv[1])
        found = store.restore()
        step = found.step if found else 0
        if found and found.path.read_bytes() != step.to_bytes(4, "big") * (1 << 20):
            sys.exit(f"step {step} is not what was saved")
        while True:
            step += 1
            store.save(lambda path: path.write_bytes(step.to_bytes(4, "big") * (1 << 20)), step)
            print("saved", step, flush=True)

    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            print("pid", os.getpid(), flush=True)
            saves()
        print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_kills_while_it_saves_never_leave_an_unusable_one(
    store: S3CheckpointStore, s3: S3Server, tmp_path: Path
) -> None:
    chance, said = random.Random(1), 0
    script = tmp_path / "saves.py"
    script.write_text(textwrap.dedent(SAVES))
    with subprocess.Popen(
        [sys.executable, str(script), str(store.location)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **s3.environment, "TMPDIR": str(tmp_path)},  # whoever is killed cannot tidy up
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        for _ in range(15):
            print(file=process.stdin, flush=True)
            (_, pid), (what, number) = (process.stdout.readline().split() for _ in range(2))
            assert what == "saved", "it could not restore"
            time.sleep(chance.uniform(0.0, 0.05))  # anywhere in the next ones
            os.kill(int(pid), signal.SIGKILL)
            last = int(number)
            while (line := process.stdout.readline().split())[0] == "saved":
                last = int(line[1])
            assert line == ["ended", str(-signal.SIGKILL)]
            assert last > said, "a checkpoint that was reported was lost"
            said = last
        process.stdin.close()
    assert len(keys(store)) <= 6


def test_half_a_gibibyte_does_not_need_much_memory(store: S3CheckpointStore, s3: S3Server, tmp_path: Path) -> None:
    script = tmp_path / "large.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        from prefect_gpu.training.checkpoints import open_store
        def write(path):
            block = bytes(range(256)) * 4096
            with path.open("wb") as file:
                for _ in range(512):
                    file.write(block)
        open_store(sys.argv[1]).save(write, 1)
        found = open_store(sys.argv[1]).restore()
        assert found.size_bytes == 1 << 29
        # Not ru_maxrss: that begins with what the process that started this one had.
        peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
        print(int(peak.split()[1]) * 1024)
    """)
    )
    done = subprocess.run(
        [sys.executable, str(script), str(store.location)], capture_output=True, text=True,
        env={**os.environ, **s3.environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 256 << 20


class Keeper:
    """An S3 that takes everything, and removes nothing."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_object(self, **asked: Any) -> None:
        self.objects[asked["Key"]] = asked.get("Body", b"")

    def get_object(self, **asked: Any) -> dict[str, Any]:
        begin = int(asked.get("Range", "bytes=0-")[len("bytes=") : -1])
        return {"Body": io.BytesIO(self.objects[asked["Key"]][begin:])}

    def get_paginator(self, name: str) -> Any:
        return self

    def paginate(self, **asked: Any) -> list[dict[str, Any]]:  # what has begun to be sent is none of it
        now, prefix = datetime.now(timezone.utc), asked["Prefix"]
        return [{"Contents": [{"Key": key, "LastModified": now} for key in self.objects if key.startswith(prefix)]}]

    def delete_objects(self, **asked: Any) -> None:
        raise ClientError({"Error": {"Code": "SlowDown"}}, "DeleteObjects")


def test_a_checkpoint_is_saved_although_older_ones_cannot_be_removed(caplog: pytest.LogCaptureFixture) -> None:
    """Else the best one would be followed by one that is worse."""
    best = BestKeeper(S3CheckpointStore(S3Location("bucket", "runs"), Keeper()))
    for step, loss in enumerate((0.6, 0.5, 0.3, 0.4), 1):
        best.offer(save_text(f"loss {loss}"), loss, step, last=True)
    found = best.restore()
    assert found is not None and found.path.read_text() == "loss 0.3"
    assert "could not be removed" in caplog.text


class Breaking(Keeper):
    """One whose answers break off after so many bytes."""

    after = 1 << 20

    def get_object(self, **asked: Any) -> dict[str, Any]:
        body = super().get_object(**asked)["Body"]
        return {"Body": Broken(body, self.after)} if "/data/" in asked["Key"] else {"Body": body}


class Broken:
    def __init__(self, body: io.BytesIO, after: int) -> None:
        self._body, self._after = body, after

    def read(self, size: int) -> bytes:
        if self._body.tell() >= self._after and self._body.read(1):
            raise ResponseStreamingError(error="it broke off")
        return self._body.read(size)


def test_a_connection_that_breaks_off_is_followed_by_one_for_the_rest() -> None:
    server, content = Breaking(), random.Random(1).randbytes(3 << 20)
    store = S3CheckpointStore(S3Location("bucket", "runs"), server)
    store.save(lambda path: path.write_bytes(content), step=1)
    found = store.restore()
    assert found is not None and found.path.read_bytes() == content

    server.after = 0
    with pytest.raises(CheckpointError, match="broke off"):
        store.restore()
