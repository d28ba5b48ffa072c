"""What a fault leaves behind is swept up with its test, and not found by a later one."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Collect connections whose closing was made to fail: nobody can close them any more."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
