"""What a check found: one line per finding, and the exit code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """A place in a file, what is wrong there, and what to do."""

    path: Path
    line: int
    text: str


def python_files(*folders: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file below the folders, with its syntax tree."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            yield path, ast.parse(path.read_text(), filename=str(path))


def finish(name: str, findings: Iterable[Finding], *, report: bool = False) -> int:
    """Print the findings and return the exit code: 1 if there are any.

    A report only prints how many there are, and returns 0.
    """
    found = sorted(findings)
    count = f"{name}: {len(found) or 'no'} finding{'' if len(found) == 1 else 's'}"
    if report:
        print(f"{count}; list them with: python tools/{name}.py")
        return 0
    for path, line, text in found:
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        print(f"{shown}:{line}: {text}")
    print(count)
    return 1 if found else 0
