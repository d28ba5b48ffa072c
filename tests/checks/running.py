"""Run a check of the folder tools/ as `make check` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools"


def check(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a check in a process of its own; returns its exit code and what it prints."""
    command = [sys.executable, str(TOOLS / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
