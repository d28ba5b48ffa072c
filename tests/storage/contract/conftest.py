"""Every store on its real database. A new store joins by a line in `STORES`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncebox.storage.steps import run
from support.stores import STORES, StoreHarness


@pytest.fixture(params=STORES)
def harness(request: pytest.FixtureRequest) -> Iterator[StoreHarness]:
    made = StoreHarness(request.param, request.getfixturevalue(STORES[request.param]))
    yield made
    run(made.database.close())
