"""What a row of the history teaches, and what it must not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.estimation.runs import MARKS, TARGETS
from prefect_gpu.estimation.submission import known_of
from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.state.asked import AskedType
from prefect_gpu.storage.finished import asked_types, communication, finished_run, newest_slowdowns
from prefect_gpu.storage.row import OUTCOMES, HistoryRow, Part
from tests.support import examples

TIMES = {"prepared_s": 3.0, "trained_s": 100.0, "saved_s": 2.0, "steps_done": 50}


def row(**values: Any) -> HistoryRow:
    known: dict[str, Any] = {"run_id": "r", "flow_name": "train", "outcome": "completed", "ended_at": 1000.0}
    return HistoryRow(**(known | values))


def measured(**values: Any) -> dict[str, float]:
    run = finished_run(row(**values))
    return {} if run is None else dict(run.measured)


def test_a_completed_run_teaches_its_times() -> None:
    assert measured(**TIMES) == {"launching_s": 3.0, "training_s": 100.0, "saving_s": 2.0, "step_s": 2.0}


def test_a_short_training_tells_nothing_of_its_use_of_a_gpu() -> None:
    """Seen on an H200: trainings of one to three seconds, whose use NVML gave as 0."""
    told = {"device_util_mean": 0.0, "device_util_std": 0.0}
    assert "utilisation" not in measured(**TIMES | {"trained_s": 2.5}, **told)
    assert measured(**TIMES, **told)["utilisation"] == 0.0


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "crashed"])
def test_a_run_that_did_not_complete_teaches_nothing(outcome: str) -> None:
    assert finished_run(row(outcome=outcome, device_memory_peak_bytes=8, cpu_mean=1.0, **TIMES)) is None


def test_a_run_that_ran_out_of_memory_teaches_its_memory_alone() -> None:
    run = finished_run(row(outcome="failed", out_of_memory=True, devices=("a",), device_memory_peak_bytes=8, **TIMES))
    assert run is not None
    assert (run.measured, run.completed, run.out_of_memory) == ({"memory_bytes": 8.0}, False, True)


# what the row says, memory of one device
MEMORY: dict[str, tuple[dict[str, Any], float | None]] = {
    "of each of its devices": ({"devices": ("a", "b"), "device_memory_peak_bytes": 8, "rss_peak_bytes": 3}, 4.0),
    "of each device of a gang's first instance, which reports": (
        {
            "devices": ("a", "b", "c", "d"),
            "device_memory_peak_bytes": 8,
            "parts": tuple({"node": n, "devices": d, "role": "worker"} for n, d in (("n1", ("a", "b")), ("n2", "cd"))),
        },
        4.0,
    ),
    "of the process on a virtual device": ({"devices": ("v",), "virtual": True, "rss_peak_bytes": 3}, 3.0),
    "not of the process on a real device": ({"devices": ("a",), "rss_peak_bytes": 3}, None),
}


@pytest.mark.parametrize("values, expected", MEMORY.values(), ids=MEMORY.keys())
def test_memory(values: dict[str, Any], expected: float | None) -> None:
    assert measured(**values, **TIMES).get("memory_bytes") == expected


@pytest.mark.parametrize("odd", [-1.0, math.nan, math.inf, 1e12, "a text", True, 10**400, None])
def test_an_absurd_time_is_left_out_and_the_others_stay(odd: Any) -> None:
    assert measured(**(TIMES | {"trained_s": odd})) == {"launching_s": 3.0, "saving_s": 2.0}


@pytest.mark.parametrize("steps", [0, -3, None, "a text"])
def test_without_steps_there_is_no_time_of_one(steps: Any) -> None:
    assert "step_s" not in measured(**(TIMES | {"steps_done": steps}))


def test_a_submission_and_its_row_say_the_same() -> None:
    declared = {"batch_size": 32, "steps": 50}
    request = Request(gpus=2, cpus=4, category="cv", features=("lr", "model.width"))
    submitted = known_of("train", {"lr": 0.1}, request, declared, "H100")
    run = finished_run(
        row(
            parameters={"lr": 0.1},
            features=declared | {"gpus": 2, "tags": ["x"], "named": ["lr", "model.width"]},
            requested_gpus=2.0,
            requested_cpus=4.0,
            category="cv",
            device_kind="H100",
            **TIMES,
        )
    )
    assert run is not None and run.known == submitted


@pytest.mark.parametrize("odd", [None, "lr", 3, {"lr": 1}, [1, None]])
def test_names_of_features_that_are_none_are_left_out(odd: Any) -> None:
    run = finished_run(row(features={"named": odd, "batch_size": 8}, **TIMES))
    assert run is not None and (run.known.named, run.known.declared) == ((), {"batch_size": 8})


ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([1]))
NUMBERS = (
    *("requested_gpus", "requested_cpus", "prepared_s", "trained_s", "saved_s", "steps_done", "device_util_mean"),
    *("device_util_std", "device_memory_peak_bytes", "cpu_mean", "rss_peak_bytes", "net_mean_bytes_per_s"),
    *("ended_at", "parameters", "features", "pace"),
)


@settings(max_examples=examples(0.6), deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(NUMBERS, ANYTHING)), st.sampled_from(OUTCOMES))
def test_any_row_teaches_something_sensible_or_nothing(values: dict[str, Any], outcome: str) -> None:
    run = finished_run(row(**values, outcome=outcome, devices=("a",)))
    if run is not None:
        assert run.measured and set(run.measured) <= set(TARGETS)
        assert all(math.isfinite(value) and value >= 0 for value in run.measured.values())


# first step of the restored run, seconds trained since -> what it teaches of its steps
RESTORED: dict[str, tuple[Any, float, dict[str, float]]] = {
    "it counts on": (30, 40.0, {"step_s": 2.0, "training_s": 100.0}),
    "it had begun at its first step": (0, 100.0, {"step_s": 2.0, "training_s": 100.0}),
    "it had done all": (50, 1.0, {}),
    "it had done more": (60, 1.0, {}),
    "what is no number counts as none": ("x", 100.0, {"step_s": 2.0, "training_s": 100.0}),
}


@pytest.mark.parametrize("first, seconds, steps", RESTORED.values(), ids=RESTORED)
def test_a_restored_run_took_its_time_for_the_rest_of_its_steps(
    first: Any, seconds: float, steps: dict[str, float]
) -> None:
    run = finished_run(row(features={"resumed_at": first, "batch_size": 8}, **(TIMES | {"trained_s": seconds})))
    assert run is not None and run.known.declared == {"batch_size": 8}
    assert {name: run.measured[name] for name in ("step_s", "training_s") if name in run.measured} == steps


PACE = {str(mark): 0.5 * mark for mark in MARKS}


@pytest.mark.parametrize(
    "odd",
    [{}, {"1": 0.5}, PACE | {"1": -1.0}, PACE | {"3": 0.6}, PACE | {"5": math.nan}, PACE | {"7": "x"}, [1], None],
    ids=repr,
)
def test_a_pace_comes_back_whole_or_not_at_all(odd: Any) -> None:
    whole, absurd = finished_run(row(pace=PACE, **TIMES)), finished_run(row(pace=odd, **TIMES))
    assert whole is not None and whole.pace == {mark: 0.5 * mark for mark in MARKS}
    assert absurd is not None and absurd.pace == {}


def test_of_each_pair_of_flows_the_newest_slowdown_counts() -> None:
    rows = [
        row(flow_name="a", slowdowns={"b": 1.5}, outcome="cancelled"),
        row(flow_name="a", slowdowns={"b": 9.0, "c": 1.1}),
        row(flow_name="b", slowdowns={"a": math.nan, "b": "much", "c": -1.0}),
        row(flow_name="b", slowdowns={"a": 2.0}),
        row(flow_name="c", slowdowns=None),
    ]
    assert newest_slowdowns(rows) == (("a", "b", 1.5), ("a", "c", 1.1), ("b", "a", 2.0))


def test_runs_tell_what_was_asked_for() -> None:
    gib, parts = 2**30, tuple({"node": n, "devices": (n,), "role": "worker"} for n in "ab")
    rows = [
        row(requested_gpus=2, requested_gpu_memory_bytes=10 * gib + 1),
        row(requested_gpus=2, requested_gpu_memory_bytes=11 * gib, outcome="failed"),
        row(requested_gpus=1, requested_gpu_memory_bytes=4 * gib, features={"shares": True}),
        row(requested_gpus=1, features={"shares": "perhaps"}),
        *(row(requested_gpus=odd) for odd in (None, 0, "many", 1e9)),
        row(requested_gpus=1, devices=("a", "b"), parts=parts),
    ]
    assert asked_types(rows) == ((AskedType(1, 0, False), 1), (AskedType(1, 4, True), 1), (AskedType(2, 11, False), 2))


def test_an_elastic_run_tells_where_it_ended_and_how_fast_it_was_before() -> None:
    features = {"gpus": 1, "max_gpus": 4, "speeds": {"1": [50, 5.0], "4": [90, 3.0], "3": [2, 1.0]}}
    run = finished_run(row(requested_gpus=1, devices=("a", "b", "c", "d"), features=features, **TIMES))
    assert run is not None
    assert run.known.gpus == 4, "its steps took what they did on four devices"
    assert run.speeds == {1: 10.0, 4: 30.0}
    assert run.known.declared == {}, "what the pool notes is nothing that it declared"


def test_an_elastic_gang_tells_all_its_devices_and_what_it_did_on_several_nodes() -> None:
    parts = tuple({"node": n, "devices": (n,), "role": "worker"} for n in "ab")
    features = {"max_gpus": 4, "speeds": {"1": [50, 5.0], "2/2": [45, 3.0], "x/2": [9, 1.0], "2/": [9, 1.0]}}
    run = finished_run(row(requested_gpus=1, devices=("a", "b"), parts=parts, features=features, **TIMES))
    assert run is not None and (run.known.gpus, run.nodes) == (2, 2)
    assert run.speeds == {1: 10.0} and run.apart == {2: 15.0}


def test_an_instance_of_a_gang_has_the_devices_that_it_asked_for() -> None:
    parts = tuple({"node": n, "devices": (n,), "role": "worker"} for n in "ab")
    run = finished_run(row(requested_gpus=1, devices=("a", "b"), parts=parts, **TIMES))
    assert run is not None and run.known.gpus == 1


PARTS = tuple(Part(node=node, devices=(f"{node}0", f"{node}1"), role="worker") for node in "mn")
SPREAD = {
    "parts": PARTS,
    "devices": ("m0", "m1", "n0", "n1"),
    "trained_s": 100.0,
    "steps_done": 60,
    "net_mean_bytes_per_s": 8e6,
    "features": {"batch_size": 32, "resumed_at": 10, "features": {"comm_to_comp": 1.5}},
}


def test_a_run_on_several_nodes_teaches_how_its_program_communicates() -> None:
    found = communication(row(**SPREAD))
    assert found is not None
    assert found.key == Key("train", 4, 2)
    assert (found.step_s, found.bytes_per_s, found.batch_size, found.comm_to_comp) == (2.0, 8e6, 32.0, 1.5)


@pytest.mark.parametrize("odd", [None, "much", -1.0, math.nan, True])
def test_odd_values_of_communication_are_left_out(odd: Any) -> None:
    features = {"batch_size": odd, "features": {"comm_to_comp": odd}}
    found = communication(row(**SPREAD | {"net_mean_bytes_per_s": odd, "trained_s": odd, "features": features}))
    assert found is not None
    assert (found.bytes_per_s, found.comm_to_comp) == (None, None)
    assert found.step_s is None or found.step_s < 0
    assert communication(row(**SPREAD | {"features": odd})) is not None


def test_who_did_not_complete_or_had_no_device_teaches_nothing_of_it() -> None:
    assert communication(row(**SPREAD | {"outcome": "failed"})) is None
    assert communication(row(**TIMES)) is None
