"""The supervisor, as far as no process is needed."""

from __future__ import annotations

from oncebox.services.supervisor import LONGEST_BACKOFF, Backoff


def test_a_worker_that_crashes_after_some_seconds_each_time_is_restarted_less_and_less_often() -> (
    None
):
    backoff = Backoff()
    pauses = [backoff.after(ran=3.0) for _ in range(10)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_BACKOFF


def test_a_worker_that_ran_long_enough_is_restarted_soon() -> None:
    backoff = Backoff()
    for _ in range(10):
        backoff.after(ran=3.0)
    assert backoff.after(ran=3600.0) == 0.5
    assert backoff.after(ran=3.0) == 1.0
