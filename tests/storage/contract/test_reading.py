"""The contract of stores: reading."""

from __future__ import annotations

from oncebox.model.outcome import Kind
from support.stores import StoreHarness, entry


def test_counters_of_one_worker_and_minute_add_up(harness: StoreHarness) -> None:
    for _ in range(3):
        harness.record(entry(Kind.done, "a", 1), entry(Kind.duplicate, "a", 1))
    sums = "SELECT sum(received), sum(done), sum(duplicate), sum(dead) FROM oncebox_minute_counter"
    assert [tuple(map(int, row)) for row in harness.query(sums)] == [(6, 3, 3, 0)]
