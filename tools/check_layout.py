"""Check that the package stays easy to read: entries, sizes of files and functions.

Usage: python tools/check_layout.py [--report] [repository folder]
With --report it prints only how many there are, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from findings import ROOT, Finding, Function, finish, python_files

ENTRIES = 14
SOURCE_LINES = 350
TEST_LINES = 500
FUNCTION_LINES = 7

OLD_MODULES = """
    alone archive archives aside audit claims database dead demo django drain envelope forgetting
    gaps handlers home hooks housekeeping identity liveness look message options ordering outcome
    past payload plan process properties replays reports retention retry schema sequence sequencing
    sources store unit
"""
"""Modules and folders that used to be at the top of the package, and are in its folders now."""


def main(arguments: list[str]) -> int:
    """Check a repository."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="only count, and exit with 0")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    options = parser.parse_args(arguments)
    package = options.root / "src" / "oncebox"
    findings = [
        *check_entries(package),
        *check_lengths(package, SOURCE_LINES),
        *check_lengths(options.root / "tests", TEST_LINES),
        *check_functions(package),
    ]
    return finish("check_layout", findings, report=options.report)


def check_entries(package: Path) -> Iterator[Finding]:
    """The top of the package: few entries, and none of the old layout."""
    entries = [path for path in sorted(package.iterdir()) if path.name != "__pycache__"]
    if len(entries) > ENTRIES:
        text = f"{len(entries)} entries, at most {ENTRIES}: move the new one into a folder."
        yield Finding(package, 1, text)
    for path in entries:
        if path.stem in OLD_MODULES.split():
            text = "this name belongs to the old layout: docs/architecture.md says what goes where."
            yield Finding(path, 1, text)


def check_lengths(folder: Path, limit: int) -> Iterator[Finding]:
    """Python files that are too long to read in one go."""
    for path in sorted(folder.rglob("*.py")):
        lines = len(path.read_text().splitlines())
        if lines > limit:
            yield Finding(path, lines, f"{lines} lines, at most {limit}: split it by topic.")


def check_functions(package: Path) -> Iterator[Finding]:
    """The median length of the package's functions; names the longest ones."""
    lengths = [
        (body_lines(node), path, node)
        for path, tree in python_files(package)
        for node in ast.walk(tree)
        if isinstance(node, Function)
    ]
    middle = median([length for length, _, _ in lengths] or [0])
    if middle <= FUNCTION_LINES:
        return
    for length, path, node in sorted(lengths, key=lambda found: -found[0])[:10]:
        text = (
            f"{node.name}() has {length} lines; the median of all functions is {middle:g}, "
            f"at most {FUNCTION_LINES}: split the long ones into named steps."
        )
        yield Finding(path, node.lineno, text)


def body_lines(node: Function) -> int:
    """The source lines of a function's body, without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
