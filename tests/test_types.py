"""mypy and pyright reject the mistakes of mistakes.py, and accept everything else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

MISTAKES = Path(__file__).parent / "typed_mistakes" / "mistakes.py"
ROOT = MISTAKES.parents[2]


def expected() -> set[int]:
    lines = MISTAKES.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# rejected")}


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command, str(MISTAKES)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_mypy_rejects_each_mistake_and_nothing_else() -> None:
    found = re.findall(r"mistakes\.py:(\d+): error", run("mypy", "--strict"))
    assert {int(line) for line in found} == expected()


def test_pyright_rejects_each_mistake_and_nothing_else() -> None:
    report = json.loads(run("pyright", "--pythonpath", sys.executable, "--outputjson"))
    found = [d for d in report["generalDiagnostics"] if d["severity"] == "error"]
    assert {d["range"]["start"]["line"] + 1 for d in found} == expected()
