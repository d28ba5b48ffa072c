"""Fixtures of the fault tests: worker processes, and the clean-up after a fault."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.worker_pool import WorkerPool
from support.fork_server import ForkServer
from support.worlds import World


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Collect connections whose closing was made to fail: they cannot be closed any more."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Where worker processes come from."""
    fork_server = ForkServer("faults.crashing_worker")
    yield fork_server
    fork_server.close()


@pytest.fixture
def pool(world: World, fork_server: ForkServer, tmp_path: Path) -> Iterator[WorkerPool]:
    """Worker processes for one test, none of which outlives it."""
    pool = WorkerPool(world, fork_server, tmp_path)
    yield pool
    pool.close()
