from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers.conformance import until
from prefect_gpu.runtime.drivers.output import KEPT_BYTES, OutputTail, tail_lines, trim


@pytest.mark.parametrize(
    ("content", "n", "lines"),
    [
        (b"", 3, ()),
        (b"one", 3, ("one",)),
        (b"one\n", 3, ("one",)),
        (b"\n\none\n", 3, ("", "", "one")),
        (b"one\ntwo\nthree\nfour\n", 3, ("two", "three", "four")),
        (b"one\ntwo\nthree\nfour", 3, ("two", "three", "four")),
        (b"one\ntwo", 0, ()),
        (b" 10%\r 50%\r100%\r\nlatin \xfc\n", 3, ("100%", "latin �")),
    ],
)
def test_tail_lines(tmp_path: Path, content: bytes, n: int, lines: tuple[str, ...]) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert tail_lines(path, n) == lines


def test_tail_lines_reads_only_the_end_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(10 * 1024**3)  # sparse: reading it whole would not end in time
        file.seek(0, 2)
        file.write(b"\n" + b"".join(b"%d\n" % i for i in range(30_000)))
    assert tail_lines(path) == tuple(str(i) for i in range(29_980, 30_000))


def test_tail_lines_of_no_file(tmp_path: Path) -> None:
    assert tail_lines(tmp_path / "none") == ()


async def test_lines_are_repeated_as_they_come(tmp_path: Path) -> None:
    path, lines = tmp_path / "log", list[str]()
    tail = OutputTail(path, 0, lines.append)
    running = asyncio.create_task(tail.run())
    await asyncio.sleep(0)  # there is no file yet
    with path.open("ab", buffering=0) as file:
        file.write("one\nüml".encode()[:-3])
        await until(lambda: lines == ["one"])
        file.write("üml".encode()[1:] + b"aut\n")
        await until(lambda: lines == ["one", "ümlaut"])
        file.write(b"the end")
    tail.finish()
    await running
    assert lines == ["one", "ümlaut", "the end"]


async def test_a_tail_begins_where_it_is_told(tmp_path: Path) -> None:
    path, lines = tmp_path / "log", list[str]()
    path.write_bytes(b"old\nnew\n")
    tail = OutputTail(path, 4, lines.append)
    tail.finish()
    await tail.run()
    assert lines == ["new"]


async def test_a_line_without_end_is_repeated_in_pieces(tmp_path: Path) -> None:
    path, pieces = tmp_path / "log", list[str]()
    path.write_bytes(b"x" * 1_000_000)
    tail = OutputTail(path, 0, pieces.append)
    tail.finish()
    await tail.run()
    assert "".join(pieces) == "x" * 1_000_000
    assert max(map(len, pieces)) <= 3 * 64 * 1024


async def test_a_flood_is_not_repeated_as_a_whole(tmp_path: Path) -> None:
    path, lines = tmp_path / "log", list[str]()
    path.write_bytes(b"x" * 63 + b"\n")
    with path.open("ab") as file:
        file.write((b"y" * 63 + b"\n") * (4 * KEPT_BYTES // 64))
        file.write(b"the end\n")
    tail = OutputTail(path, 0, lines.append)
    tail.finish()
    await tail.run()
    assert lines[-1] == "the end"
    assert sum(map(len, lines)) <= KEPT_BYTES
    assert sum("are left out here" in line for line in lines) == 1


def test_only_the_end_of_a_long_output_takes_room(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab") as file:
        for number in range(5 * KEPT_BYTES // 1024):
            file.write(b"%1023d\n" % number)
    before = tail_lines(path)
    trim(path)
    seen = path.stat()
    assert seen.st_size == 5 * KEPT_BYTES, "whoever writes or reads at the end is not disturbed"
    assert seen.st_blocks * 512 <= 2 * KEPT_BYTES + (1 << 20)
    assert tail_lines(path) == before
