"""An inbox for the tests of replays."""

from __future__ import annotations

import pytest

from support.replays import ReplayHarness
from support.worlds import World


@pytest.fixture
def harness(world: World) -> ReplayHarness:
    return ReplayHarness(world)
