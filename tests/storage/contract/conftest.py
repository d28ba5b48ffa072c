"""Every store on its real database. A new store joins by a line in `STORES`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from oncebox.storage.contract import Store
from oncebox.storage.steps import run
from support.store_calls import RecordedStore, named_methods, source_of
from support.stores import STORES, StoreHarness
from support.worlds import postgres_fixture


@pytest.fixture(params=STORES)
def harness(request: pytest.FixtureRequest) -> Iterator[StoreHarness]:
    """A store on an empty database. A test that passes must have called what its source names."""
    fixture = "sqlite_url" if request.param == "sqlite" else postgres_fixture(request)
    made = StoreHarness(request.param, request.getfixturevalue(fixture))
    store = RecordedStore(made.store)
    made.store = cast(Store, store)
    failed = request.session.testsfailed
    yield made
    run(made.database.close())
    if request.session.testsfailed == failed:
        missed = named_methods(source_of(request.function)) - store.ran
        assert not missed, f"the test names {sorted(missed)}, but did not call it"
