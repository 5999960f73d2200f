"""Agents of one machine take different cores, as long as there are some."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers.slurm.cores import own_cores


def agent(cpus: Sequence[int], granted: int, folder: Path, pipe: Any) -> None:
    """Take cores, tell, and hold them until told to end."""
    pipe.send(own_cores(cpus, granted, folder))
    pipe.recv()


def begin(cpus: Sequence[int], granted: int, folder: Path) -> tuple[tuple[int, ...], Any]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=agent, args=(cpus, granted, folder, theirs))
    process.start()

    def end() -> None:
        ours.send("end")
        process.join()

    return ours.recv(), end


def test_who_is_bound_to_as_many_cores_as_it_was_given_has_those(tmp_path: Path) -> None:
    assert own_cores((4, 5), 2, tmp_path) == own_cores((4, 5), 2, tmp_path) == (4, 5)
    assert own_cores((4, 5), 3, tmp_path) == (4, 5)


def test_agents_of_one_machine_take_different_cores_and_give_them_back_as_they_end(tmp_path: Path) -> None:
    first, end_first = begin((0, 1, 2, 3), 2, tmp_path)
    second, end_second = begin((0, 1, 2, 3), 2, tmp_path)
    third, end_third = begin((0, 1, 2, 3), 1, tmp_path)
    assert (first, second, third) == ((0, 1), (2, 3), (0,))
    end_second()
    fourth, end_fourth = begin((0, 1, 2, 3), 2, tmp_path)
    assert fourth == (2, 3)
    for end in (end_first, end_third, end_fourth):
        end()


def test_without_a_folder_for_locks_it_takes_the_first_ones(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert own_cores((3, 4, 5), 2, tmp_path / "file") == (3, 4)
