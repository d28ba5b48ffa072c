"""Helpers for tests: deliver events to your inbox on a temporary database, and check the outcomes.

from oncebox.testing import TemporaryDatabase, assert_kinds, deliver, event

with TemporaryDatabase(inbox) as database:
    outcomes = deliver(inbox, event(inbox, "order.confirmed", {"id": "o-1"}), copies=3, seed=7)
    assert_kinds(outcomes, done=1, duplicate=2)

pytest is not needed. With pytest, `oncebox.testing.pytest_plugin` has a fixture.
"""

from oncebox.testing.databases import TemporaryDatabase, use_database
from oncebox.testing.delivering import adeliver, assert_kinds, deliver, disturbed
from oncebox.testing.events import event

__all__ = [
    "TemporaryDatabase",
    "adeliver",
    "assert_kinds",
    "deliver",
    "disturbed",
    "event",
    "use_database",
]
