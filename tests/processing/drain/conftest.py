"""An inbox for the tests of the drain."""

from __future__ import annotations

import pytest

from support.inboxes import InboxHarness
from support.worlds import World


@pytest.fixture
def harness(world: World) -> InboxHarness:
    return InboxHarness(world)
