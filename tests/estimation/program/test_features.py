"""From whatever users pass to their flows to numbers that a model can use."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.estimation.program.features import MOST_CATEGORIES, Encoder, Value, flatten, make_column, plain_name
from prefect_gpu.estimation.runs import Known
from tests.support import examples

# parameters -> the facts they become
FACTS: dict[str, tuple[dict[str, Any], dict[str, Value]]] = {
    "numbers and switches are floats": ({"lr": 0.1, "epochs": 3, "amp": True}, {"lr": 0.1, "epochs": 3.0, "amp": 1.0}),
    "texts stay": ({"opt": "adam"}, {"opt": "adam"}),
    "nested ones have dotted names": ({"model": {"head": {"width": 8}}}, {"model.head.width": 8.0}),
    "a list of numbers is its length and sum": ({"layers": [8, 4]}, {"layers.len": 2.0, "layers.sum": 12.0}),
    "a list of others is its length": ({"tags": ["a", 1]}, {"tags.len": 2.0}),
    "numpy's numbers are numbers": ({"lr": np.float32(0.5), "n": np.int64(7)}, {"lr": 0.5, "n": 7.0}),
    "what is None is left out": ({"seed": None}, {}),
    "objects, bytes and dates are left out": ({"a": object(), "b": b"1", "c": datetime.date(2026, 1, 1)}, {}),
    "what is nested too deep is left out": ({"a": {"b": {"c": {"d": {"e": 1}}}}}, {}),
    "a long text is cut": ({"text": "x" * 1000}, {"text": "x" * 64}),
}


@pytest.mark.parametrize("parameters, facts", FACTS.values(), ids=FACTS)
def test_parameters_become_facts(parameters: dict[str, Any], facts: dict[str, Value]) -> None:
    found, warnings = flatten(Known("train", parameters))
    assert {name: value for name, value in found.items() if name[:1] != "#"} == facts
    assert warnings == []


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 10**400, 10**5000, -(10**400)], ids=lambda _: "")
def test_what_is_no_finite_number_is_left_out_with_a_warning(odd: float) -> None:
    facts, warnings = flatten(Known("train", {"n": odd, "layers": [odd, 1.0]}))
    assert "n" not in facts and "layers.sum" not in facts and facts["layers.len"] == 2.0
    assert len(warnings) == 2 and all("is not finite, and was left out" in warning for warning in warnings)


def test_what_the_run_asks_for_and_declares_has_names_of_its_own() -> None:
    known = Known("train", {"steps": 1}, {"steps": 2}, gpus=4, workers=2, cpus=8, category="cv", device_kind="H200")
    facts, _ = flatten(known)
    assert facts == {
        "steps": 1.0, "@steps": 2.0, "#gpus": 4.0, "#workers": 2.0, "#servers": 0.0, "#cpus": 8.0, "#category": "cv",
        "#device_kind": "H200",
    }  # fmt: skip
    assert {plain_name(name) for name in facts} >= {"steps", "gpus", "device_kind"}


def test_only_named_parameters_count_where_some_are_named() -> None:
    known = Known("train", {"lr": 0.1, "model": {"width": 8, "depth": 2}, "models": 3}, named=("model", "lr_max"))
    facts, warnings = flatten(known)
    assert {name for name in facts if name[0] != "#"} == {"model.width", "model.depth"}
    assert warnings == ["feature 'lr_max' is named for 'train', but the run has no such parameter"]


# values of a column -> whether it says something
COLUMNS: dict[str, tuple[list[Value | None], bool]] = {
    "numbers that vary": ([1.0, 2.0, 3.0], True),
    "numbers that do not": ([3.0, 3.0, 3.0], False),
    "texts that repeat": (["a", "b", "a", "b"], True),
    "a text that does not vary": (["a", "a", "a"], False),
    "texts that hardly ever repeat": ([f"run-{at}" for at in range(20)], False),
    "a constant that half of the runs lack": ([3.0, None, 3.0, None], True),
    "nothing": ([None, None], False),
}


@pytest.mark.parametrize("values, says", COLUMNS.values(), ids=COLUMNS)
def test_only_columns_that_say_something_are_kept(values: list[Value | None], says: bool) -> None:
    assert (make_column("x", values) is not None) == says


def test_sizes_are_logarithms_and_what_may_be_negative_is_not() -> None:
    sizes, offsets = make_column("n", [1.0, 10.0, 100.0]), make_column("offset", [-1.0, 0.0, 1.0])
    assert sizes is not None and sizes.logarithmic
    assert offsets is not None and not offsets.logarithmic
    steps = [sizes.encode(value)[0] for value in (1.0, 10.0, 100.0)]
    assert steps[1] - steps[0] == pytest.approx(steps[2] - steps[1])


def test_rare_texts_count_as_one() -> None:
    texts: list[Value | None] = [f"kind-{at % 12}" for at in range(120)]
    column = make_column("kind", texts)
    assert column is not None and len(column.categories) == MOST_CATEGORIES
    rare = [text for text in set(texts) if text not in column.categories]
    assert len({tuple(column.encode(text)) for text in rare}) == 1


# (what a run has where the others have n = 1 .. 1000 and opt = adam or sgd) -> what is odd about it
ODD: dict[str, tuple[dict[str, Value], str]] = {
    "far outside": ({"n": 1e12, "opt": "adam"}, "n=1000000000000.0 is far from what was seen (1 to 1000)"),
    "no size at all": ({"n": 0.0, "opt": "adam"}, "n=0.0 is far from what was seen (1 to 1000)"),
    "a text for a number": ({"n": "many", "opt": "adam"}, "n='many' is a text where earlier runs had a number"),
    "a number for a text": ({"n": 5.0, "opt": 3.0}, "opt=3.0 has not been seen, or rarely"),
    "a text never seen": ({"n": 5.0, "opt": "lion"}, "opt='lion' has not been seen, or rarely"),
    "a new parameter": ({"n": 5.0, "opt": "adam", "depth": 3.0}, "depth is new: no earlier run had it"),
}


@pytest.mark.parametrize("run, warning", ODD.values(), ids=ODD)
def test_what_is_odd_about_a_run_is_said(run: dict[str, Value], warning: str) -> None:
    encoder = Encoder([{"n": float(10 ** (at % 4)), "opt": ("adam", "sgd")[at % 2]} for at in range(8)])
    warnings: list[str] = []
    usual = encoder.row({"n": 10.0, "opt": "sgd"}, warnings)
    assert warnings == []
    row = encoder.row(run, warnings)
    assert warnings == [warning]
    assert len(row) == len(usual) == len(encoder.groups) and np.all(np.isfinite(row)) and np.max(np.abs(row)) < 10


# what all runs had in common, what the next one has -> what is said of it
CONSTANT: dict[str, tuple[list[Value], Value, list[str]]] = {
    "a text": (["mnist"] * 2, "imagenet", ["x='imagenet' was always 'mnist' before"]),
    "a number": ([5.0] * 3, 50.0, ["x=50.0 was always 5.0 before"]),
    "numbers are compared exactly": ([5.0] * 3, 5.1, ["x=5.1 was always 5.0 before"]),
    "the same again": (["mnist"] * 2, "mnist", []),
    "one run shows no habit": (["mnist"], "imagenet", []),
    "names of runs": (["wise-crab", "sly-fox"], "red-hen", []),
}


@pytest.mark.parametrize("before, now, said", CONSTANT.values(), ids=CONSTANT)
def test_a_parameter_that_never_varied_and_now_does_is_said(before: list[Value], now: Value, said: list[str]) -> None:
    encoder = Encoder([{"x": value, "#gpus": 1.0} for value in before])
    warnings: list[str] = []
    encoder.row({"x": now, "#gpus": 2.0}, warnings)
    assert warnings == said
    encoder.row({}, warnings)
    assert warnings == said, "what is missing is no other value"


_anything = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3) | st.just("nan")


@settings(max_examples=examples(0.6), deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), _anything), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from("abcd"), _anything),
)
def test_rows_are_finite_whatever_a_history_holds(
    history: list[dict[str, Value | None]], asked: dict[str, Value | None]
) -> None:
    given_to = [{name: value for name, value in run.items() if value is not None} for run in [*history, asked]]
    encoder = Encoder(given_to[:-1])
    assert np.all(np.isfinite(encoder.matrix(given_to)))


def test_rows_are_finite_over_the_widest_range_there_is() -> None:
    encoder = Encoder([{"n": number} for number in (-1.7e308, 1.7e308, 0.0, 1.7e308)])
    assert np.all(np.isfinite(encoder.matrix([{"n": number} for number in (-1.7e308, 1.7e308, 0.0)])))


def test_a_parameter_may_have_an_empty_name() -> None:
    facts, _ = flatten(Known("train", {"": 1.0, "a": {"": 2.0}}))
    assert facts["a."] == 2.0 and "" not in facts
