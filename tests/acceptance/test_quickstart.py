"""The quickstart does what it says: its files are written, its commands run, its output compared.

One shell runs all commands, as a reader's would. Only `pip` is not the real one, and `oncebox` is
that of this environment.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"

PATIENCE = 100
"""Seconds that the shell has for all commands."""

pytestmark = [pytest.mark.crash]


class Block(NamedTuple):
    """A fenced block, and the line on which it begins."""

    language: str
    text: str
    line: int


def blocks() -> list[Block]:
    page = PAGE.read_text()
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], page.count("\n", 0, m.start()) + 1) for m in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder; the programs that the page calls are elsewhere."""
    made = tmp_path / "quickstart"
    made.mkdir()
    return made


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, does in (
        ("python", f'exec "{sys.executable}" "$@"'),
        ("oncebox", f'exec "{sys.executable}" -m oncebox "$@"'),
        ("pip", 'test "$*" = "install oncebox pytest"'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "ONCEBOX"))}
    path = f"{programs}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture
def outputs(folder: Path, environment: dict[str, str]) -> dict[int, str]:
    """What each shell block printed, by its line."""
    script = ["set -e", "trap 'jobs -p | xargs -r kill' EXIT"]
    for block in blocks():
        if block.language == "python":
            (folder / file_name(block)).write_text(block.text)
        elif block.language == "sh":
            script += [f"echo '==== {block.line}'", block.text]
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = shell.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        end(shell)
        out, err = shell.communicate()
    finally:
        end(shell)
    log = folder / "run.log"
    logged = log.read_text() if log.exists() else ""
    assert shell.returncode == 0, f"it stopped here:\n{out[-3000:]}\n{err}\n{logged[-3000:]}"
    parts = re.split(r"^==== (\d+)\n", out, flags=re.MULTILINE)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))


def end(shell: subprocess.Popen[str]) -> None:
    """End it, and what it left in the background; workers do not outlive their supervisor."""
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGKILL)


def file_name(block: Block) -> str:
    named = re.match(r"# (\w+\.py)\n", block.text)
    assert named, f"line {block.line}: a Python block begins with the name of its file"
    return named[1]


def test_the_quickstart_works_and_prints_what_it_says(outputs: dict[int, str]) -> None:
    last = None
    compared = 0
    for block in blocks():
        if block.language == "sh":
            last = block
        elif block.language == "text":
            assert last is not None
            compared += 1
            left = iter(map(stable, outputs[last.line].splitlines()))
            for line in filter(None, map(stable, block.text.splitlines())):
                complaint = f"line {block.line}: {line!r} is not in\n{outputs[last.line]}"
                assert any(matches(line, printed) for printed in left), complaint
    assert compared >= 8


def test_every_block_of_the_quickstart_is_of_a_kind_that_is_tested() -> None:
    assert {block.language for block in blocks()} == {"python", "sh", "text"}
    assert PAGE.read_text().count("```") == 2 * len(blocks())


def stable(line: str) -> str:
    """A line without its times and the width of its columns; "..." stands for anything."""
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", line)
    line = re.sub(r"\d+ s ago", "AGE", line)
    line = re.sub(r"in \d+\.\d+s", "in SECONDS", line)
    return " ".join(line.split())


def matches(wanted: str, printed: str) -> bool:
    return re.fullmatch(re.escape(wanted).replace(r"\.\.\.", ".*"), printed) is not None
