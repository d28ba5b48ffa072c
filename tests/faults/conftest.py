"""What a fault leaves behind is swept up with its test, and not found by a later one."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.staff import Nursery, Staff
from worlds import World


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Collect connections whose closing was made to fail: nobody can close them any more."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where worker processes come from."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def staff(world: World, nursery: Nursery, tmp_path: Path) -> Iterator[Staff]:
    """Worker processes for one test, none of which outlives it."""
    staff = Staff(world, nursery, tmp_path)
    yield staff
    staff.close()
