"""The contract of stores: retention."""

from __future__ import annotations

from datetime import timedelta

from oncebox.storage.steps import run
from support.stores import NOW, StoreHarness, arrival


def test_a_claim_reports_messages_below_the_watermark(harness: StoreHarness) -> None:
    mark = "now()" if harness.store.dialect == "postgres" else str(int(NOW.timestamp() * 1_000_000))
    with harness.transaction() as work:
        sql = f"INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('c', {mark})"
        run(work.execute(sql, {}))
    with harness.transaction() as work:
        old = arrival("old", produced_at=NOW - timedelta(days=1))
        new = arrival("new", produced_at=NOW + timedelta(days=1))
        assert harness.claim(work, old, new, arrival("undated")).answers == "lnn"


def test_a_message_that_is_too_late_is_not_stored(harness: StoreHarness) -> None:
    mark = "now()" if harness.store.dialect == "postgres" else str(int(NOW.timestamp() * 1_000_000))
    with harness.transaction() as work:
        run(
            work.execute(
                f"INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('c', {mark})", {}
            )
        )
    assert harness.receive(arrival("old", produced_at=NOW - timedelta(days=1))) == "l"
    assert harness.pending() == {}
