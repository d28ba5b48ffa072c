"""The contract of stores: the suite exercises every method, on every database.

The fixture `harness` proves the other half: each test really calls the methods that it names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.store_calls import contract_methods, named_methods
from support.stores import STORES

ONE_DATABASE = {"locks_rows": "postgres"}
"""Marks of tests that run on one database."""


def find_tests(dialect: str) -> Iterator[ast.FunctionDef]:
    """The tests of this folder that run on a database, with every `make test`."""
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                if all(is_run_on(mark, dialect) for mark in marks):
                    yield node


def is_run_on(mark: str, dialect: str) -> bool:
    if mark in ONE_DATABASE:
        return ONE_DATABASE[mark] == dialect
    return mark.startswith("pytest.mark.parametrize")


@pytest.mark.parametrize("dialect", STORES)
def test_the_suite_calls_every_method_of_the_store_contract(dialect: str) -> None:
    called = {name for test in find_tests(dialect) for name in named_methods(test)}
    assert sorted(contract_methods() - called) == []
