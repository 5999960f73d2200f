from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from prefect_gpu.cli.cordon import _moment
from prefect_gpu.runtime.devices.cordons import FILE, Cordons
from tests.cli.conftest import InProcess

DEVICES = {"PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES": "12"}


def test_a_device_is_taken_out_of_service_and_put_back(run_cli: InProcess, tmp_path: Path) -> None:
    env = DEVICES | {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(tmp_path)}
    done = run_cli("cordon", "virtual-3", "virtual-10", "--reason", "loud", **env)
    assert done.exit_code == 0 and "virtual-3, virtual-10" in done.stdout
    first = Cordons(tmp_path).read()["virtual-3"]
    assert first.reason == "loud"
    assert "virtual-3 (loud)" in run_cli("devices", **env).stdout
    run_cli("cordon", "virtual-3", "--reason", "dusty", **env)
    again = Cordons(tmp_path).read()["virtual-3"]
    assert (again.reason, again.since) == ("dusty", first.since)
    done = run_cli("cordon", "virtual-3", "virtual-3", "--reason", " ", **env)
    assert "Out of service: virtual-3." in done.stdout and Cordons(tmp_path).read()["virtual-3"].reason == "by hand"
    done = run_cli("uncordon", "virtual-3", **env)
    assert done.exit_code == 0 and list(Cordons(tmp_path).read()) == ["virtual-10"]
    done = run_cli("uncordon", "virtual-3", **env)
    assert done.exit_code == 2
    assert "'virtual-3': no such device is out of service. Give one of virtual-10." in done.output


def test_a_reason_is_shown_as_it_was_written(run_cli: InProcess, tmp_path: Path) -> None:
    """Rich would take what is in brackets for a style, and fail at one that begins with a slash."""
    env = DEVICES | {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(tmp_path)}
    run_cli("cordon", "virtual-3", "--reason", "[gpu] lost [/dev/nvidia3]", **env)
    done = run_cli("devices", **env)
    assert done.exit_code == 0 and "virtual-3 ([gpu] lost [/dev/nvidia3])" in done.stdout


def test_a_device_that_is_not_clear_changes_nothing(run_cli: InProcess, tmp_path: Path) -> None:
    env = DEVICES | {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(tmp_path)}
    for wrong, why in (("virtual-", "12 devices begin so"), ("gpu-7", "there is no such device")):
        done = run_cli("cordon", "virtual-2", wrong, **env)
        assert done.exit_code == 2 and why in done.stderr and "virtual-11" in done.stderr
    assert Cordons(tmp_path).read() == {}
    done = run_cli("uncordon", "virtual-2", **env)
    assert done.exit_code == 2 and "no device is out of service" in done.stderr


def test_a_damaged_file_is_named_and_kept(run_cli: InProcess, tmp_path: Path) -> None:
    env = DEVICES | {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(tmp_path)}
    (tmp_path / FILE).write_text('{"virtual-0": ')
    done = run_cli("cordon", "virtual-2", **env)
    assert done.exit_code == 1 and FILE in done.stderr and "remove it" in done.stderr
    assert (tmp_path / FILE).read_text() == '{"virtual-0": '


def test_a_worker_sees_each_change_once(tmp_path: Path) -> None:
    operator, worker = Cordons(tmp_path), Cordons(tmp_path)
    assert not worker.changed()
    operator.add({"virtual-0": "loud"})
    assert worker.changed() and not worker.changed()
    operator.remove("virtual-0")
    assert worker.changed() and worker.read() == {}


def test_a_device_goes_out_of_service_later(run_cli: InProcess, tmp_path: Path) -> None:
    env = DEVICES | {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(tmp_path)}
    done = run_cli("cordon", "virtual-3", "--by", "2099-01-01T12:00:00+00:00", **env)
    assert done.exit_code == 0 and "Out of service from" in done.stdout
    cordoned = Cordons(tmp_path).read()["virtual-3"]
    assert cordoned.by == 4_070_952_000.0 and not cordoned.is_out(4_070_951_999.0) and cordoned.is_out(4_070_952_000.0)
    assert "Out of service from 2099" in run_cli("devices", **env).stdout
    for by in ("2h", "18:00"):
        assert run_cli("cordon", "virtual-3", "--by", by, **env).exit_code == 0
        assert (Cordons(tmp_path).read()["virtual-3"].by or 0.0) < 4_070_952_000.0
    for by in ("tonight", "99999999999h"):
        done = run_cli("cordon", "virtual-3", "--by", by, **env)
        assert done.exit_code == 2 and "18:00" in done.stderr


def test_a_plan_for_later_puts_no_sick_device_back(run_cli: InProcess, tmp_path: Path) -> None:
    """As of a node that is to be maintained tonight, and of which one device is out already."""
    env = DEVICES | {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(tmp_path)}
    run_cli("cordon", "virtual-3", "--reason", "fell off the bus", **env)
    done = run_cli("cordon", "virtual-3", "virtual-4", "--by", "2h", "--reason", "maintenance", **env)
    assert "Out of service already, and not put back until then: virtual-3." in done.stdout
    cordoned = Cordons(tmp_path).read()
    assert (cordoned["virtual-3"].reason, cordoned["virtual-3"].by) == ("fell off the bus", None)
    assert cordoned["virtual-4"].reason == "maintenance"
    run_cli("cordon", "virtual-4", **env)
    assert Cordons(tmp_path).read()["virtual-4"].by is None, "sooner than planned"


def test_a_number_is_one_of_seconds_and_no_time_of_day() -> None:
    now = datetime(2026, 3, 28, 10).astimezone()
    assert [(_moment(by, now) - now).total_seconds() for by in ("1800", "20")] == [1800.0, 20.0]


def test_a_time_of_day_in_another_zone_is_the_next_one_there() -> None:
    now = datetime(2026, 3, 28, 1, tzinfo=timezone(timedelta(hours=14)))  # in UTC, it is the day before, 11:00
    assert [(_moment(by, now) - now).total_seconds() / 3600 for by in ("12:00+00:00", "10:00+00:00")] == [1, 23]


def test_a_moment_after_the_clocks_have_been_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Berlin, they are on 29 March 2026."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        now = datetime(2026, 3, 28, 20).astimezone()
        for by, day in (("18:00", 29), ("2026-03-30T18:00", 30), ("2026-03-30T18:00+02:00", 30), ("21:00", 28)):
            moment = _moment(by, now)
            assert datetime.fromtimestamp(moment.timestamp()) == datetime(2026, 3, day, 21 if by == "21:00" else 18)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("now", "by", "minutes"),
    [
        ("2026-10-25T00:45+00:00", "02:30", 45.0),  # 02:45 for the first time: 02:30 comes again
        ("2026-10-25T01:10+00:00", "02:30", 20.0),  # 02:10 for the second time
        ("2026-10-25T01:45+00:00", "02:30", 24 * 60 - 15.0),
        ("2026-03-29T00:50+00:00", "02:30", 40.0),  # there is none: half an hour after 02:00, which is 03:30
        ("2026-03-29T00:50+00:00", "2026-03-29T02:30", 40.0),
    ],
)
def test_a_time_in_the_night_in_which_the_clocks_are_changed(
    monkeypatch: pytest.MonkeyPatch, now: str, by: str, minutes: float
) -> None:
    """It was a day later, or an hour earlier."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        here = datetime.fromisoformat(now).astimezone()
        assert (_moment(by, here) - here).total_seconds() / 60 == minutes
    finally:
        monkeypatch.undo()
        time.tzset()
