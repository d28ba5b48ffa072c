"""When a failed message runs again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.errors import ConfigurationError, Reject, RetryAfter
from oncebox.model.retry import Retry

quick = settings(max_examples=200, deadline=None)
ERROR = ValueError("bad")

spans = st.timedeltas(timedelta(0), timedelta(days=30))
chances = st.floats(0, 1)
attempts = st.integers(1, 10_000)


@st.composite
def policies(draw: st.DrawFn, jitter: st.SearchStrategy[float] | None = None) -> Retry:
    first, cap = sorted((draw(spans), draw(spans)))
    jitters = st.floats(0, 1) if jitter is None else jitter
    factor = draw(st.floats(1, 100))
    return Retry(20_000, initial_delay=first, max_delay=cap, factor=factor, jitter=draw(jitters))


@quick
@given(policies(), attempts, chances)
def test_a_delay_stays_between_zero_and_max_delay_plus_jitter(
    retry: Retry, failures: int, chance: float
) -> None:
    delay = retry.delay(failures, ERROR, chance)
    assert delay is not None
    microsecond = timedelta(microseconds=1)
    assert timedelta(0) <= delay <= retry.max_delay * (1 + retry.jitter) + microsecond


@quick
@given(policies(jitter=st.just(0.0)), attempts, chances)
def test_a_delay_never_shrinks_and_never_exceeds_max_delay(
    retry: Retry, failures: int, chance: float
) -> None:
    now, later = (retry.delay(n, ERROR, chance) for n in (failures, failures + 1))
    assert now is not None
    assert later is not None
    assert retry.initial_delay <= now <= later <= retry.max_delay


def test_delays_double_from_initial_delay_to_max_delay() -> None:
    retry = Retry(10, initial_delay=timedelta(seconds=1), max_delay=timedelta(seconds=10), jitter=0)
    delays = [retry.delay(n, ERROR, 0.7) for n in range(1, 7)]
    assert delays == [timedelta(seconds=s) for s in (1, 2, 4, 8, 10, 10)]


def test_the_random_part_of_a_delay_is_at_most_the_jitter() -> None:
    retry = Retry(initial_delay=timedelta(seconds=10), jitter=0.2)
    delays = [retry.delay(1, ERROR, chance) for chance in (0.0, 0.5, 1.0)]
    assert delays == [timedelta(seconds=s) for s in (8, 10, 12)]


def test_a_large_factor_reaches_max_delay_and_does_not_overflow() -> None:
    retry = Retry(1000, factor=1e6, jitter=0)
    assert retry.delay(999, ERROR, 0.5) == retry.max_delay


def test_after_the_last_attempt_there_is_no_delay() -> None:
    retry = Retry(max_attempts=3)
    assert retry.delay(2, ERROR, 0.5) is not None
    assert retry.delay(3, ERROR, 0.5) is None
    assert Retry(max_attempts=1).delay(1, ERROR, 0.5) is None


def test_a_rejected_message_gets_no_further_attempt() -> None:
    assert Retry().delay(1, Reject("never"), 0.5) is None


def test_a_handler_may_name_the_time_of_the_next_attempt() -> None:
    wish = RetryAfter(timedelta(hours=3))
    assert Retry().delay(1, wish, 0.5) == timedelta(hours=3)
    assert str(wish) == "another attempt in 3:00:00"
    assert str(RetryAfter(timedelta(1), "bank is closed")) == "bank is closed"


def test_retry_after_does_not_add_attempts() -> None:
    assert Retry(max_attempts=2).delay(2, RetryAfter(timedelta(0)), 0.5) is None


def test_retry_after_a_negative_delay_means_now() -> None:
    assert Retry().delay(1, RetryAfter(timedelta(hours=-1)), 0.5) == timedelta(0)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"max_attempts": 0}, "max_attempts must be an integer of at least 1, got 0"),
        ({"max_attempts": "5"}, "max_attempts must be an integer of at least 1, got '5'"),
        ({"factor": "2"}, "factor must be a number, got '2'"),
        ({"initial_delay": timedelta(seconds=-1)}, "0 <= initial_delay <= max_delay"),
        ({"initial_delay": timedelta(hours=1)}, "0 <= initial_delay <= max_delay"),
        ({"factor": 0.5}, "factor >= 1"),
        ({"factor": float("nan")}, "factor >= 1"),
        ({"jitter": -0.1}, "0 <= jitter <= 1"),
        ({"jitter": 1.1}, "0 <= jitter <= 1"),
        ({"jitter": float("nan")}, "0 <= jitter <= 1"),
    ],
)
def test_an_invalid_policy_is_refused(bad: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Retry(**bad)
