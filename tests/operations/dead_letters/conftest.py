"""An inbox for the tests of dead letters."""

from __future__ import annotations

import pytest

from support.inboxes import ONCE, InboxHarness
from support.worlds import World


@pytest.fixture
def harness(world: World) -> InboxHarness:
    return InboxHarness(world, retry=ONCE)
