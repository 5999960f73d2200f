"""Where the kernel counts what it kills for lack of memory. That it is counted is seen in ``tests/live``."""

from __future__ import annotations

from pathlib import Path

from prefect_gpu.runtime.drivers.supervisor import oom_counter, oom_kills


def test_in_a_container_a_group_is_the_uppermost_one(tmp_path: Path) -> None:
    """Under both versions of control groups: this machine's own list says which."""
    for counter, content in (
        (tmp_path / "memory" / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        (tmp_path / "memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 0\n"),
    ):
        counter.parent.mkdir(exist_ok=True)
        counter.write_text(content)
    assert oom_kills(oom_counter(str(tmp_path))) == 3


def test_without_control_groups_nothing_is_counted(tmp_path: Path) -> None:
    assert oom_counter(str(tmp_path)) == ""
    assert oom_kills("") is None
    (tmp_path / "nonsense").write_text("oom_kill\n")
    assert oom_kills(str(tmp_path / "nonsense")) is None
