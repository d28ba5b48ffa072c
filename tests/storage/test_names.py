"""Prefix and schema are checked and quoted."""

from __future__ import annotations

import pytest

from oncebox.errors import ConfigurationError
from oncebox.storage.sql.names import Names


def test_names_are_prefixed_qualified_and_quoted() -> None:
    assert Names().quoted("inbox") == '"oncebox_inbox"'
    assert Names("box_", "billing").quoted("inbox") == '"billing"."box_inbox"'


def test_placeholders_are_filled_and_everything_else_stays() -> None:
    names = Names("b_", "s")
    assert names.fill("SELECT '{}' FROM {inbox}, {dead}") == (
        """SELECT '{}' FROM "s"."b_inbox", "s"."b_dead\""""
    )


def test_an_index_is_created_without_its_schema() -> None:
    text = "CREATE UNIQUE INDEX {dead_sighting} ON {dead} (x)"
    assert (
        Names("b_", "s").fill(text) == 'CREATE UNIQUE INDEX "b_dead_sighting" ON "s"."b_dead" (x)'
    )


@pytest.mark.parametrize("good", ["a", "_", "oncebox_", "a1_", "x" * 39])
def test_plain_identifiers_are_taken(good: str) -> None:
    assert Names(good, good).quoted("x") == f'"{good}"."{good}x"'


@pytest.mark.parametrize(
    "bad", ["", "Box", "1a", "a-b", "a b", 'a"b', "a.b", "a;", "ä", "a\n", "a\0", "x" * 64]
)
def test_anything_else_is_refused(bad: str) -> None:
    with pytest.raises(ConfigurationError, match=r"prefix .* is not a plain SQL identifier"):
        Names(bad)
    with pytest.raises(ConfigurationError, match=r"schema .* is not a plain SQL identifier"):
        Names(schema=bad)


def test_a_prefix_leaves_room_for_the_names_behind_it() -> None:
    assert Names("x" * 39, "x" * 63)
    with pytest.raises(ConfigurationError, match="at most 39 characters"):
        Names("x" * 40)
