"""Whose turn is it?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.policies.fairness import by_share, dominant_share


def test_the_example_of_the_drf_paper() -> None:
    # 9 cores, 18 GB; A's tasks take (1, 4), B's (3, 1). In turn they come to 3 tasks of A and 2 of B.
    total = {"cores": 9, "memory": 18}
    tasks = {"A": {"cores": 1, "memory": 4}, "B": {"cores": 3, "memory": 1}}
    use = {user: {"cores": 0.0, "memory": 0.0} for user in tasks}
    started = []
    while True:
        user = by_share(use, total)[0]
        left = {name: total[name] - sum(held[name] for held in use.values()) for name in total}
        if any(tasks[user][name] > left[name] for name in total):
            break
        started.append(user)
        use[user] = {name: use[user][name] + tasks[user][name] for name in total}
    assert sorted(started) == ["A", "A", "A", "B", "B"]
    assert dominant_share(use["A"], total) == dominant_share(use["B"], total) == pytest.approx(2 / 3)


def test_only_the_array_s_own_resource_counts() -> None:
    use = {"trainer": {"gpus": 8, "cores": 4}, "cruncher": {"cores": 40}}
    assert by_share(use, {"cores": 80}) == ["trainer", "cruncher"]
    assert by_share(use, {"gpus": 16}) == ["cruncher", "trainer"]


def test_a_weight_of_two_may_hold_twice_as_much() -> None:
    use = {"a": {"gpus": 3}, "b": {"gpus": 2}}
    assert by_share(use, {"gpus": 8}) == ["b", "a"]
    assert by_share(use, {"gpus": 8}, {"a": 2.0}) == ["a", "b"]


def test_users_of_equal_share_keep_their_order() -> None:
    assert by_share({"b": {}, "a": {}, "c": {}}, {"gpus": 8}) == ["b", "a", "c"]


def test_a_resource_that_the_cluster_lacks_is_all_of_it() -> None:
    assert dominant_share({"gpus": 1}, {"gpus": 0}) == float("inf")
    assert dominant_share({}, {"gpus": 0}) == 0.0


def test_senseless_amounts_are_refused() -> None:
    with pytest.raises(ValueError, match="gpus is -1"):
        dominant_share({"gpus": -1}, {"gpus": 8})
    with pytest.raises(ValueError, match="weight of user 'a' is 0"):
        by_share({"a": {}}, {"gpus": 8}, {"a": 0})


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 100), max_size=8))
def test_of_one_resource_who_holds_least_comes_first(held: dict[str, float]) -> None:
    order = by_share({user: {"gpus": gpus} for user, gpus in held.items()}, {"gpus": 128})
    assert sorted(order) == sorted(held)
    assert [held[user] for user in order] == sorted(held.values())
