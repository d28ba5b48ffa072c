"""How errors become text and fingerprints."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.model.error_text import ERROR_LIMIT, TRACE_LIMIT, describe
from oncebox.model.error_text import trace as traced


class Refused(Exception):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def refuse(value: object) -> None:
    raise Refused(f"no {value}")


def refuse_otherwise(value: object) -> None:
    raise Refused(f"no {value}")


def deep(value: int) -> None:
    if value == 0:
        raise Refused("bottom")
    (deep, deeper)[value % 2](value - 1)


def deeper(value: int) -> None:
    deep(value)


def caught(function: Callable[..., None], *args: object) -> Exception:
    try:
        function(*args)
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


def test_an_errors_line_has_its_class_and_text() -> None:
    assert describe(caught(refuse, 17)).line == "Refused: no 17"


def test_a_fingerprint_does_not_depend_on_values() -> None:
    one, two = describe(caught(refuse, 17)), describe(caught(refuse, "other"))
    assert one.fingerprint == two.fingerprint
    assert one.line != two.line


def test_a_fingerprint_depends_on_the_class_and_the_place_of_an_error() -> None:
    errors = [caught(refuse, 1), caught(refuse_otherwise, 1), Refused("no 1"), ValueError("no 1")]
    assert len({describe(error).fingerprint for error in errors}) == 4


def test_a_trace_shows_the_place_and_the_cause() -> None:
    def wrapped() -> None:
        try:
            refuse(17)
        except Refused as error:
            raise ValueError("outer") from error

    trace = traced(caught(wrapped))
    assert "in refuse" in trace
    assert "Refused: no 17" in trace
    assert trace.endswith("ValueError: outer\n")


def test_an_error_that_was_never_raised_can_be_described() -> None:
    text = describe(Refused("no 1"))
    assert text.line == "Refused: no 1"
    assert traced(Refused("no 1")).endswith("Refused: no 1\n")


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_error_texts_can_be_stored(text: str) -> None:
    error = caught(refuse, text)
    for written in (*describe(error), traced(error)):
        assert "\0" not in written
        written.encode()


def test_nul_and_surrogates_are_escaped_and_not_lost() -> None:
    assert describe(Refused("a\0b\udcffc")).line == "Refused: a\\0b\\udcffc"


def test_a_long_error_is_cut_in_the_middle() -> None:
    text = describe(Refused("x" * 100_000 + "end"))
    assert text.line == ("Refused: " + "x" * ERROR_LIMIT)[:ERROR_LIMIT]
    trace = traced(Refused("x" * 100_000 + "end"))
    assert len(trace) == TRACE_LIMIT
    assert trace.endswith("xend\n")


def test_a_very_long_traceback_keeps_its_end() -> None:
    trace = traced(caught(deep, 400))
    assert len(trace) == TRACE_LIMIT
    assert trace.endswith("Refused: bottom\n")


def test_an_error_that_cannot_be_printed_can_still_be_recorded() -> None:
    assert describe(Unprintable()).line.startswith("Unprintable")
