"""Checkpoints: only a complete and undamaged one is ever used."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_gpu.training import CheckpointError, CheckpointStore
from prefect_gpu.training.channel.mailbox import Mailbox
from prefect_gpu.training.saver import Saver
from tests.small_disk import SmallDisk, mounted
from tests.support import examples


def save_text(text: str):  # type: ignore[no-untyped-def]
    return lambda path: path.write_text(text)


def save_folder(text: str):  # type: ignore[no-untyped-def]
    def save(path: Path) -> None:
        (path / "deep" / "er").mkdir(parents=True)
        (path / "a.txt").write_text(text)
        (path / "deep" / "er" / "b.bin").write_bytes(text.encode() * 3)
        (path / "empty").touch()

    return save


def test_nothing_saved_is_nothing_restored(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "none").restore() is None


def test_a_file_comes_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "new" / "folder")
    saved = store.save(save_text("weights"), step=17)
    assert store.restore() == saved
    assert (saved.step, saved.size_bytes, saved.path.read_text()) == (17, 7, "weights")
    assert (store.folder / "current").read_text() == "step-000017\n"


def test_a_folder_comes_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(save_folder("abc"), step=1)
    restored = store.restore()
    assert restored is not None and restored.size_bytes == 12
    assert (restored.path / "deep" / "er" / "b.bin").read_bytes() == b"abcabcabc"


def test_a_suffix_that_the_library_appends_is_followed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(lambda path: np.save(path, np.arange(3)), step=1)
    restored = store.restore()
    assert restored is not None and np.load(restored.path).tolist() == [0, 1, 2]


def test_two_are_kept_and_the_newest_counts(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (5, 10, 15):
        store.save(save_text(str(step)), step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "step-000010", "step-000015"]


def test_the_same_step_again_replaces_the_first_only_when_complete(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for text in ("first", "second", "third"):
        store.save(save_text(text), step=3)
        restored = store.restore()
        assert restored is not None and (restored.step, restored.path.read_text()) == (3, text)


def test_a_run_that_was_set_back_continues_from_its_newer_lower_step(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(save_text("damaged"), step=20).path.write_text("x")
    store.save(save_text("ten"), step=10)
    (tmp_path / "current").unlink()
    restored = store.restore()
    assert restored is not None and restored.step == 10


@pytest.mark.parametrize("text", ["", "step-000099", "../../etc", "\x00", "nonsense", "step-000001.tmp"])
def test_a_pointer_that_points_nowhere_is_ignored(tmp_path: Path, text: str) -> None:
    store = CheckpointStore(tmp_path)
    store.save(save_text("good"), step=2)
    (tmp_path / "current").write_text(text)
    restored = store.restore()
    assert restored is not None and restored.step == 2


def test_a_saving_function_that_fails_leaves_the_previous_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(save_text("good"), step=1)

    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(fail, step=2)
    restored = store.restore()
    assert restored is not None and restored.step == 1
    assert not list(tmp_path.glob("*.tmp"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "disk", 1 << 20) as disk:
        yield disk


@pytest.mark.needs("small disk")
@pytest.mark.parametrize("says", [OSError, RuntimeError])
def test_a_disk_with_room_for_two_gets_new_ones_all_the_same(small_disk: SmallDisk, says: type[Exception]) -> None:
    """What is raised on a full disk: by plain files an OSError, by PyTorch a RuntimeError of "unexpected pos"."""
    store = CheckpointStore(small_disk.folder / "run")

    def save(path: Path) -> None:
        try:
            path.write_bytes(b"1" * 400_000)
        except OSError as error:
            raise error if says is OSError else says("unexpected pos 576 vs 534") from None

    for step in (1, 2, 3, 4):
        store.save(save, step)
        restored = store.restore()
        assert restored is not None and restored.step == step
    assert store.save(save_text("small"), 5).step == 5
    small_disk.fill()
    with pytest.raises(CheckpointError, match=r"The disk of .*/run has no room for it: make room there\. \("):
        store.save(save, step=6)
    restored = store.restore()
    assert restored is not None and restored.step == 5, "the newest good one stays, whatever happens"


@pytest.mark.needs("small disk")
def test_a_full_disk_is_said_in_a_line(small_disk: SmallDisk, caplog: pytest.LogCaptureFixture) -> None:
    saver = Saver(CheckpointStore(small_disk.folder / "run"), 1e-9, lambda data: None)
    saver.begin()
    small_disk.fill(but_pages=3)
    saver.obey(Mailbox(), lambda path: path.write_bytes(b"1" * 400_000), step=7)
    assert "The checkpoint of step 7 could not be saved; training goes on. The disk of " in caplog.text
    assert "Traceback" not in caplog.text


def test_a_saving_function_that_fails_for_another_reason_costs_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        store.save(save_text("good"), step)
    called: list[Path] = []
    with pytest.raises(AttributeError):
        store.save(lambda path: called.append(path.weights), step=3)  # type: ignore[attr-defined]
    assert len(list(tmp_path.glob("step-*"))) == 2


def test_a_saving_function_that_saves_nothing_or_too_much_is_told_so(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(CheckpointError, match="saved nothing"):
        store.save(lambda path: None, step=1)
    with pytest.raises(CheckpointError, match=r"path\.mkdir"):
        store.save(lambda path: [path.with_suffix(s).touch() for s in (".a", ".b")], step=1)
    with pytest.raises(CheckpointError, match=r"saved other"):
        store.save(lambda path: path.with_name("other").touch(), step=1)


def test_what_a_killed_process_left_half_written_is_never_used_and_goes_away(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    pid = os.fork()
    if pid == 0:  # killed while it saves, as by the kernel's memory killer

        def die(path: Path) -> None:
            path.write_text("half")
            os._exit(9)

        store.save(die, step=7)
    os.waitpid(pid, 0)
    assert (tmp_path / "step-000007.tmp").exists() and store.restore() is None
    store.save(save_text("x"), step=8)
    assert not (tmp_path / "step-000007.tmp").exists()


def test_a_store_may_be_looked_at_while_it_saves(tmp_path: Path) -> None:
    """As a worker's daily clean-up does: without an error, which would keep it from what other runs have left."""
    store = CheckpointStore(tmp_path)
    with ThreadPoolExecutor(1) as training:
        saving = training.submit(lambda: [store.save(save_text("weights"), step) for step in range(200)])
        while not saving.done():
            CheckpointStore(tmp_path).holding()
        assert len(saving.result()) == 200
    held = store.holding()
    assert held is not None and held.changed_at >= (tmp_path / "current").stat().st_mtime


def test_a_best_one_that_could_not_be_saved_does_not_hide_what_there_is(tmp_path: Path) -> None:
    store, best = CheckpointStore(tmp_path), CheckpointStore(tmp_path / "best")
    store.save(save_text("weights"), 1)
    with pytest.raises(CheckpointError):
        best.save(lambda path: None, 1)
    assert store.holding() is not None
    store.remove()
    assert not tmp_path.exists()
    tmp_path.mkdir()
    best.folder.symlink_to(tmp_path.parent)
    assert store.holding() is None, "what a link leads to is not ours"


def test_what_later_trainings_have_saved_is_the_runs_too(tmp_path: Path) -> None:
    store, later = CheckpointStore(tmp_path), CheckpointStore(tmp_path / "training-2", pool="ours")
    later.save(save_text("weights"), 1)
    CheckpointStore(later.folder / "best").save(save_text("weights"), 1)
    held = store.holding()
    assert held is not None and held.pool == "ours"
    store.remove()
    assert not tmp_path.exists()


def test_a_crash_before_the_pointer_moved_finds_the_complete_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(save_text("old"), step=1)
    store.save(save_text("new"), step=2)
    (tmp_path / "current").unlink()
    restored = store.restore()
    assert restored is not None and restored.step == 2


def test_a_folder_that_nobody_can_look_into_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "run")  # as one that its user may not read; root may read all
    with pytest.raises(CheckpointError, match=r"The checkpoints in .*run are out of reach: .*levels of symbolic links"):
        CheckpointStore(tmp_path / "run").restore()
    assert CheckpointStore(tmp_path / "none").restore() is None


def test_a_folder_in_which_nothing_can_be_written_is_said_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    store = CheckpointStore(tmp_path / "file" / "run", pool="ours")
    assert store.restore() is None
    told: list[dict[str, Any]] = []
    saver = Saver(store, 1e-9, told.append)
    saver.begin()
    saver.obey(Mailbox(), save_text("weights"), step=3)
    assert "name another folder (PREFECT_INTEGRATIONS_GPU_CHECKPOINTS)" in told[0]["error"]
    assert "Traceback" not in caplog.text and "training goes on. Nothing can be written in" in caplog.text


def test_damage_is_said_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path)
    store.save(save_text("weights"), step=1).path.write_text("weighty")
    assert store.restore() is None
    assert "step-000001 is damaged" in caplog.text and "does not have the content" in caplog.text


@settings(max_examples=examples(1.5), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_damaged_what_comes_back_was_saved_so(data: st.DataObject) -> None:
    logging.getLogger("prefect_gpu.training").disabled = True
    folder = Path(tempfile.mkdtemp())
    try:
        store = CheckpointStore(folder)
        texts = {1: "first " * 5, 2: "second " * 5}
        for step, text in texts.items():
            store.save(save_folder(text), step)
        victims = sorted(path for path in folder.rglob("*") if path.is_file() and "step-000001" not in str(path))
        for _ in range(data.draw(st.integers(1, 3))):
            victim = data.draw(st.sampled_from(victims))
            content = bytearray(victim.read_bytes()) if victim.exists() else bytearray()
            damage = data.draw(st.sampled_from(["truncate", "flip", "append", "remove"]))
            if damage == "remove":
                victim.unlink(missing_ok=True)
                continue
            if damage == "append":
                content += b"\0"
            elif content:
                place = data.draw(st.integers(0, len(content) - 1))
                if damage == "truncate":
                    del content[place:]
                else:
                    content[place] ^= 1 << data.draw(st.integers(0, 7))
            victim.write_bytes(content)
        restored = store.restore()
        # The first is untouched, so there is always one; and it is one of the two, to the byte.
        assert restored is not None
        text = texts[restored.step]
        assert (restored.path / "a.txt").read_text() == text
        assert (restored.path / "deep" / "er" / "b.bin").read_bytes() == text.encode() * 3
        assert (restored.path / "empty").read_bytes() == b""
    finally:
        logging.getLogger("prefect_gpu.training").disabled = False
        shutil.rmtree(folder)
