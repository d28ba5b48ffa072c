"""Pages that readers follow step by step: a test writes their files and runs their commands.

One shell runs all commands of a page. `pip` does nothing, and `oncebox` is the one of this
environment. Blocks that are marked as not executed are left out.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from support.markdown import ROOT, Block, blocks

FOLLOWED = (
    "README.md",
    "docs/django.md",
    "docs/kafka.md",
    "docs/own-loop.md",
    "docs/quickstart.md",
    "docs/replay.md",
    "docs/retention.md",
    "docs/sequence-numbers.md",
    "docs/testing.md",
)
"""Pages that test_pages.py executes."""

PATIENCE = 100
"""Seconds that the shell has for all commands."""


class Page:
    """A page whose blocks are Python files, shell commands, and the output of these commands."""

    def __init__(self, name: str) -> None:
        assert name in FOLLOWED
        self.blocks = [block for block in blocks(ROOT / name) if block.marked is None]

    def follow(self, folder: Path, **variables: str) -> int:
        """Execute the page and compare its outputs. Returns how many were compared."""
        (folder / "work").mkdir()
        printed = self._run(folder / "work", _environment(folder / "bin", variables))
        last = None
        compared = 0
        for block in self.blocks:
            if block.language == "sh":
                last = block
            elif block.language == "text":
                assert last is not None
                compared += 1
                _compare(block, printed[last.line])
        return compared

    def _run(self, folder: Path, environment: dict[str, str]) -> dict[int, str]:
        """What each shell block printed, by its line."""
        script = ["set -e", "trap 'jobs -p | xargs -r kill' EXIT"]
        for block in self.blocks:
            if block.language == "python":
                file = folder / _file_name(block)
                file.parent.mkdir(exist_ok=True)
                file.write_text(block.text)
            elif block.language == "sh":
                script += [f"echo '==== {block.line}'", block.text]
        shell = subprocess.Popen(
            ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            out, err = shell.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            _end(shell)
            out, err = shell.communicate()
        finally:
            _end(shell)
        log = folder / "run.log"
        logged = log.read_text() if log.exists() else ""
        assert shell.returncode == 0, f"it stopped here:\n{out[-3000:]}\n{err}\n{logged[-3000:]}"
        parts = re.split(r"^==== (\d+)\n", out, flags=re.MULTILINE)
        return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))


def _environment(programs: Path, variables: dict[str, str]) -> dict[str, str]:
    programs.mkdir()
    for name, does in (
        ("python", f'exec "{sys.executable}" "$@"'),
        ("oncebox", f'exec "{sys.executable}" -m oncebox "$@"'),
        ("pip", 'test "$1" = install'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "ONCEBOX"))}
    path = f"{programs}:{os.environ['PATH']}"
    return {**kept, **variables, "PATH": path, "COLUMNS": "200", "NO_COLOR": "1"}


def _end(shell: subprocess.Popen[str]) -> None:
    """End it, and what it left in the background; workers do not outlive their supervisor."""
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGKILL)


def _file_name(block: Block) -> str:
    named = re.match(r"# ((?:\w+/)?\w+\.py)\n", block.text)
    assert named, f"line {block.line}: a Python block begins with the name of its file"
    return named[1]


def _compare(block: Block, printed: str) -> None:
    """Every line of a block was printed, in this order; "..." stands for anything."""
    left = iter(map(_stable, printed.splitlines()))
    for line in filter(None, map(_stable, block.text.splitlines())):
        complaint = f"line {block.line}: {line!r} is not in\n{printed}"
        assert any(_matches(line, candidate) for candidate in left), complaint


def _stable(line: str) -> str:
    """A line without its times and the width of its columns."""
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", line)
    line = re.sub(r"\d+ s ago", "AGE", line)
    line = re.sub(r"in \d+\.\d+s", "in SECONDS", line)
    return " ".join(line.split())


def _matches(wanted: str, printed: str) -> bool:
    return re.fullmatch(re.escape(wanted).replace(r"\.\.\.", ".*"), printed) is not None
