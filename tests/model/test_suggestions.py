"""Misspelled options are refused with a suggestion."""

from __future__ import annotations

import pytest

from oncebox.errors import ConfigurationError
from oncebox.model.suggestions import checked_options


class Shop:
    @checked_options
    def __init__(self, name: str, *, retry: int = 1, pipeline: bool = True) -> None:
        """A shop."""
        self.values = (name, retry, pipeline)


def test_known_options_are_passed_on() -> None:
    assert Shop("a", retry=2).values == ("a", 2, True)
    assert Shop(name="a", pipeline=False).values == ("a", 1, False)


def test_a_misspelled_option_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Shop("a", retrys=2)  # type: ignore[call-arg]
    assert str(caught.value) == "unknown option 'retrys', did you mean 'retry'?"


def test_an_unknown_option_is_refused_with_the_list_of_options() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Shop("a", zzz=2)  # type: ignore[call-arg]
    assert str(caught.value) == "unknown option 'zzz', known: name, retry, pipeline"


def test_the_function_keeps_its_name_and_description() -> None:
    assert (Shop.__init__.__name__, Shop.__init__.__doc__) == ("__init__", "A shop.")
