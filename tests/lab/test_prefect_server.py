"""A server's event loop is not held up by what a locked SQLite database leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# An update finds the database locked, and its cursor is left in a cycle. Then an insert waits for the lock on the same
# connection. The main thread, which alone can free the lock, makes objects until garbage is collected.
STANDS_STILL = """
import gc, sqlite3, sys, threading, time
from prefect_gpu.lab.prefect_server import collect_beside

def connected():
    one = sqlite3.connect(sys.argv[1], check_same_thread=False, isolation_level=None)
    one.execute("PRAGMA journal_mode = WAL")
    one.execute(f"PRAGMA busy_timeout = {sys.argv[3]}")
    return one

def write():
    try:
        first.execute("INSERT INTO t VALUES (1)")
        print("written")
    except sqlite3.OperationalError as error:
        print(error)

first, second = connected(), connected()
first.execute("CREATE TABLE t (x)")
gc.disable()
first.execute("BEGIN")
first.execute("SELECT * FROM t").fetchall()
second.execute("INSERT INTO t VALUES (0)")
cycle = [first.cursor()]
cycle.append(cycle)
try:
    cycle[0].execute("UPDATE t SET x = 2")
except sqlite3.OperationalError as error:
    print(error)
first.execute("ROLLBACK")
del cycle
second.execute("BEGIN IMMEDIATE")
writer = threading.Thread(target=write)
writer.start()
time.sleep(0.5)
gc.enable()
if sys.argv[2] == "beside":
    collect_beside(0.05)
    time.sleep(0.5)
kept = [[] for _ in range(100_000)]
second.execute("COMMIT")
writer.join()
"""


@pytest.mark.parametrize("collected", ["as ever", "beside"])
def test_a_lock_is_freed_although_garbage_of_an_earlier_one_is_collected(tmp_path: Path, collected: str) -> None:
    stood_still = collected == "as ever" and sys.version_info < (3, 12)
    waits_ms = 2_000 if stood_still else 60_000
    command = [sys.executable, "-c", STANDS_STILL, str(tmp_path / "database"), collected, str(waits_ms)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["database is locked", "database is locked" if stood_still else "written"]
