"""How long devices stand idle between two trainings."""

from __future__ import annotations

from prefect_gpu.runtime.metering.idle import IdleTime


def test_the_first_training_ends_no_idle_time() -> None:
    idle = IdleTime()
    assert idle.begins("a", ["d"], 10.0) is None and idle.total("d") == (0.0, 0)


def test_the_time_between_two_trainings_is_counted() -> None:
    idle = IdleTime()
    idle.begins("a", ["d"], 0.0)
    idle.ends("a", 10.0)
    assert idle.begins("b", ["d"], 12.5) == 2.5
    idle.ends("b", 20.0)
    idle.begins("c", ["d"], 20.5)
    assert idle.total("d") == (3.0, 2)


def test_a_device_that_others_train_on_is_not_idle() -> None:
    idle = IdleTime()
    idle.begins("a", ["d"], 0.0)
    idle.begins("b", ["d"], 1.0)
    idle.ends("a", 5.0)
    assert idle.begins("c", ["d"], 9.0) == 0.0


def test_several_devices_count_each_for_itself() -> None:
    idle = IdleTime()
    idle.begins("a", ["d"], 0.0)
    idle.begins("b", ["e"], 0.0)
    idle.ends("a", 10.0)
    idle.ends("b", 14.0)
    assert idle.begins("c", ["d", "e", "new"], 16.0) == 4.0
    assert (idle.total("d"), idle.total("e"), idle.total("new")) == ((6.0, 1), (2.0, 1), (0.0, 0))


def test_an_end_before_an_end_that_is_known_and_a_strangers_end_change_nothing() -> None:
    """Reports of two runs may come in another order than that in which they were made."""
    idle = IdleTime()
    idle.begins("a", ["d"], 0.0)
    idle.begins("b", ["d"], 1.0)
    idle.ends("b", 10.0)
    idle.ends("a", 8.0)
    idle.ends("stranger", 99.0)
    assert idle.begins("c", ["d"], 11.0) == 1.0


def test_a_training_that_seems_to_begin_before_the_end_of_the_last_one_followed_at_once() -> None:
    idle = IdleTime()
    idle.begins("a", ["d"], 0.0)
    idle.ends("a", 10.0)
    assert idle.begins("b", ["d"], 9.99) == 0.0
