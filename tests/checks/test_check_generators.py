"""tools/check_generators.py finds a forgotten `yield from`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.running import TOOLS, check

PACKAGE = TOOLS.parent / "src" / "oncebox"

MODULE = """
from shop.other import helper, plain_helper

class Base:
    def save(self) -> Steps[int]:
        yield call

class Store(Base):
    def close(self) -> None:
        pass

    def work(self, queue: Queue) -> Steps[None]:
        {statement}
"""
OTHER = """
class Queue:
    def push(self) -> Steps[None]:
        yield call

    def close(self) -> Steps[None]:
        yield call

def helper() -> Steps[None]:
    yield call

def plain_helper() -> None:
    pass
"""


@pytest.mark.parametrize(
    "statement",
    [
        "self.save()",
        "helper()",
        "queue.push()",
        "queue.close()",
        "if self.save(): pass",
        "if not queue.push(): pass",
        "return 1 if helper() and True else 2",
    ],
)
def test_a_forgotten_yield_from_is_found(tmp_path: Path, statement: str) -> None:
    result = _check(tmp_path, statement)
    assert result.returncode == 1
    assert "store.py:13:" in result.stdout
    assert "returns Steps" in result.stdout
    assert "Add `yield from`" in result.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "yield from self.save()",
        "steps = self.save()",
        "run(helper())",
        "self.close()",
        "plain_helper()",
        "print('unknown')",
    ],
)
def test_other_calls_are_fine(tmp_path: Path, statement: str) -> None:
    result = _check(tmp_path, statement)
    assert (result.returncode, result.stdout) == (0, "check_generators: no findings\n")


def test_no_yield_from_of_the_package_can_be_forgotten_unnoticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import check_generators

    package = check_generators.Package(PACKAGE)
    missed = [
        f"{module.path}:{node.lineno}"
        for module in package.modules
        for node in _plain_yield_froms(module.tree)
        if any(True in package.kinds[name] for name in _called(node))
        and not _found_without(check_generators, package, module, node)
    ]
    assert missed == []


def _plain_yield_froms(tree: ast.Module) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.YieldFrom):
            yield node


def _called(node: Any) -> list[str]:
    call = node.value.value
    if not isinstance(call, ast.Call):
        return []
    return [ast.unparse(call.func).rpartition(".")[2]]


def _found_without(check_generators: Any, package: Any, module: Any, node: Any) -> bool:
    kept, node.value = node.value, node.value.value
    try:
        return bool(check_generators.Visitor(package, module).check())
    finally:
        node.value = kept


def _check(folder: Path, statement: str) -> Any:
    package = folder / "shop"
    package.mkdir()
    (package / "store.py").write_text(MODULE.format(statement=statement))
    (package / "other.py").write_text(OTHER)
    return check("check_generators", package)
