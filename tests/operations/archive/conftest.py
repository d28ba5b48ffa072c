"""An inbox with an archive, for the tests of the archive."""

from __future__ import annotations

from pathlib import Path

import pytest

import oncebox.operations.archive.format
import oncebox.operations.archive.location
import oncebox.operations.purge
from support.archives import ArchiveHarness
from support.worlds import World


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def harness(world: World, place: Path) -> ArchiveHarness:
    return ArchiveHarness(world, place)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for each window."""
    monkeypatch.setattr(oncebox.operations.archive.format, "MESSAGES", 1)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers purge at once, and again."""
    monkeypatch.setattr(oncebox.operations.purge, "ASK_INTERVAL", 0.02)
    monkeypatch.setattr(oncebox.operations.purge, "INTERVAL", 0.02)
