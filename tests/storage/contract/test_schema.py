"""The contract of stores: migrations."""

from __future__ import annotations

from oncebox.storage.steps import run
from support.stores import StoreHarness
from support.worlds import MIGRATIONS


def test_migrations_are_applied_once_and_recorded(harness: StoreHarness) -> None:
    assert harness.applied == MIGRATIONS
    with harness.transaction() as work:
        assert run(harness.store.migrate(work)) == []
        assert run(harness.store.version(work)) == (2, 2)
