"""The public names and signatures change only on purpose: tests/public_api.txt lists them."""

from __future__ import annotations

import ast
import difflib
import runpy
from pathlib import Path

import oncebox

HERE = Path(__file__).parent
SNAPSHOT = HERE / "public_api.txt"
SCRIPT = HERE.parent / "tools" / "public_api.py"
TYPED = HERE / "typed" / "public_api.py"


def test_the_public_api_is_the_one_of_the_snapshot() -> None:
    found = runpy.run_path(str(SCRIPT))["public_api"]().splitlines()
    expected = SNAPSHOT.read_text().splitlines()
    difference = difflib.unified_diff(expected, found, "tests/public_api.txt", "oncebox", n=0)
    assert found == expected, "\n".join(
        [
            "The public API has changed. If that is intended, run `make api`, commit",
            "tests/public_api.txt, and describe the change in CHANGELOG.md.",
            *difference,
        ]
    )


def test_the_snapshot_has_every_public_name() -> None:
    names = {line.split("(")[0].split(".")[1] for line in SNAPSHOT.read_text().splitlines()}
    assert set(oncebox.__all__) <= names


def test_the_type_checkers_see_every_public_name() -> None:
    used = {
        alias.name
        for node in ast.walk(ast.parse(TYPED.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "oncebox"
        for alias in node.names
    }
    missing = sorted(set(oncebox.__all__) - used)
    assert missing == [], f"use {', '.join(missing)} in {TYPED.name}, with assert_type()"
