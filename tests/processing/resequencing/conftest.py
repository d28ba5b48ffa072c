"""An inbox for the tests of sequence numbers."""

from __future__ import annotations

import pytest

import oncebox.operations.gaps
from support.sequences import Clock, SequenceHarness
from support.worlds import World


@pytest.fixture
def harness(world: World) -> SequenceHarness:
    return SequenceHarness(world)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(oncebox.operations.gaps, "time", clock)
    return clock
