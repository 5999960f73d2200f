"""A lab with racks: its links are as slow as they are meant to be, and nothing of it is left."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_gpu.lab.docker_nodes import Lab, LabNode
from prefect_gpu.lab.sandbox import wait_until

MEGABYTES = 10
RECEIVE = """
import socket, sys
with socket.create_server((sys.argv[1], 5001)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    while connection.recv(1 << 16):
        pass
    connection.sendall(b"!")
"""
SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5001), timeout=30) as connection:
    began = time.perf_counter()
    connection.sendall(bytes(int(sys.argv[2]) * 1_000_000))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    print(time.perf_counter() - began)
"""
HALF_ENDED = """
import ctypes, pathlib, sys, threading, time
pathlib.Path("/proc/self/comm").write_text("dockerd")
threading.Thread(target=time.sleep, args=(60,)).start()
print("here", flush=True)
ctypes.CDLL(None).pthread_exit(None)  # this thread ends, and the process shows as a zombie
"""

pytestmark = pytest.mark.needs("networks")


def make(folder: Path) -> Lab:
    return Lab(
        folder, 4, "pgr", "10.76.0", racks=2, link_bps=125e6, uplink_bps=25e6, engines=False
    )  # 1 Gbit/s, and 200 Mbit/s between the racks


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with make(tmp_path_factory.mktemp("lab")) as running:
        yield running


def inside(node: LabNode, *command: str) -> list[str]:
    return ["nsenter", f"--net=/var/run/netns/{node.name}", *command]


def megabits(sender: LabNode, receiver: LabNode) -> float:
    """Of payload per second."""
    listening = subprocess.Popen(
        inside(receiver, sys.executable, "-c", RECEIVE, receiver.address), stdout=subprocess.PIPE, text=True
    )
    assert listening.stdout is not None
    with listening.stdout:
        listening.stdout.readline()
        sent = inside(sender, sys.executable, "-c", SEND, receiver.address, str(MEGABYTES))
        seconds = float(subprocess.run(sent, capture_output=True, text=True, check=True, timeout=60).stdout)
    listening.wait(10)
    return MEGABYTES * 8 / seconds


def test_nodes_are_spread_over_the_racks_in_order(racks: Lab) -> None:
    assert [node.rack for node in racks.nodes] == ["rack1", "rack1", "rack2", "rack2"]


@pytest.mark.parametrize(("one", "other"), [(0, 1), (3, 2)])
def test_in_a_rack_the_nodes_own_links_count(racks: Lab, one: int, other: int) -> None:
    assert 400 < megabits(racks.nodes[one], racks.nodes[other]) < 1050


@pytest.mark.parametrize(("one", "other"), [(0, 2), (3, 1)])
def test_between_racks_the_cable_between_them_counts(racks: Lab, one: int, other: int) -> None:
    assert 150 < megabits(racks.nodes[one], racks.nodes[other]) < 210


def test_starting_again_clears_away_what_was_left_even_where_a_process_still_lives_there(
    racks: Lab,
) -> None:
    left = subprocess.Popen(inside(racks.nodes[0], "sleep", "60"))
    try:
        time.sleep(0.2)
        racks.start()
        assert 400 < megabits(racks.nodes[0], racks.nodes[1]) < 1050
    finally:
        left.kill()
        left.wait()


def test_an_engine_that_shows_as_a_zombie_is_there_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    """One thread of an Engine that was killed mounted something once the lab believed it gone."""
    lab = Lab(tmp_path, 1, "pgz", "10.75.0")
    node = lab.nodes[0]
    ending = subprocess.Popen([sys.executable, "-c", HALF_ENDED, f"{node.folder}/data"], stdout=subprocess.PIPE)
    try:
        assert ending.stdout is not None and ending.stdout.readline() == b"here\n"
        status = Path(f"/proc/{ending.pid}/status")
        wait_until(lambda: "\nState:\tZ" in status.read_text(), what="its first thread's end")
        assert lab.pids_of(node) == [ending.pid]
        lab.stop_engine(node)
        assert lab.pids_of(node) == []
    finally:
        ending.kill()
        ending.communicate()


def test_what_is_mounted_is_unmounted_before_it_is_removed(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1, "pgz", "10.75.0")
    mounted = lab.nodes[0].folder / "exec" / "netns" / "1-network"
    mounted.mkdir(parents=True)
    for _ in range(2):  # one above the other
        subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], check=True)
    lab.stop_engine(lab.nodes[0])
    assert str(mounted) not in Path("/proc/mounts").read_text()
    assert not (lab.nodes[0].folder / "exec").exists()


def test_nothing_is_left(tmp_path: Path, racks: Lab) -> None:
    racks.stop()
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    rules = subprocess.run(["iptables", "-S", "FORWARD"], capture_output=True, text=True, check=True).stdout
    assert "pgr" not in links + names + rules


def test_more_racks_than_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="racks=3"):
        Lab(tmp_path, 2, racks=3)
