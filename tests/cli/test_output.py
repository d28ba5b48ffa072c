"""Counts for people: exact ones, and those of the status, which stop at a hundred thousand."""

from __future__ import annotations

from oncebox.cli.output import capped_count, counted


def test_a_count_is_exact() -> None:
    assert counted(1, "message") == "1 message"
    assert counted(150_000, "message") == "150,000 messages"


def test_a_count_of_the_status_is_capped() -> None:
    assert capped_count(100_000, "message") == "100,000 messages"
    assert capped_count(100_001, "message") == "100,000+ messages"
