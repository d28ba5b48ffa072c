"""Find calls of generator functions whose result is dropped: a forgotten `yield from`.

A function that returns `Steps[...]` only makes a generator. Without `yield from`, run() or arun()
nothing in it is executed, and nothing complains. This check refuses such a call as a statement of
its own, and as a condition (a generator is always true).

A call is resolved by its name: `self.x()` in the class and its base classes, `x()` in the module,
`module.x()` in that module. A method of another object, `store.x()`, counts as a generator if every
function of this name in the package is one. If only some are, or if methods of other libraries have
that name too, it counts inside generators only.

Usage: python tools/check_generators.py [package folder]
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from findings import ROOT, Finding, Function, finish, python_files

PLAIN = {
    "keeper.leave",  # of the maintenance, not of the drain
    "self._checks.close",  # an ExitStack
    "self.slots.release",  # the slots of an engine
    "self.source.open",
    "self.source.release",  # a source of messages
}
"""Calls that share their name with a generator function, and are none."""

FOREIGN = {"append", "close", "commit", "execute", "read", "remove", "rollback", "send", "write"}
"""Names that methods of other libraries have as well."""

ADVICE = "Add `yield from`; if it is not a generator, add it to PLAIN in check_generators.py."

Kinds = dict[str, bool]
"""For each name of a function, whether it returns Steps[...]."""


def main(folder: Path) -> int:
    """Check the package in a folder."""
    package = Package(folder)
    findings = [found for module in package.modules for found in Visitor(package, module).check()]
    return finish("check_generators", findings)


class Module:
    """One file: its functions, its classes, and the package's names that it imports."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree
        self.functions = _functions(tree)
        self.classes = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        }
        self.imports = dict(_imports(tree))


class Package:
    """Every function of the package, by module, by class and by name."""

    def __init__(self, folder: Path) -> None:
        self.modules = [
            Module(_module_name(folder, path), path, tree) for path, tree in python_files(folder)
        ]
        self.by_name = {module.name: module for module in self.modules}
        self.classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
        self.kinds: dict[str, set[bool]] = defaultdict(set)
        for module in self.modules:
            for found in module.classes.values():
                self.classes[found.name].append(found)
            for node in ast.walk(module.tree):
                if isinstance(node, Function):
                    self.kinds[node.name].add(returns_steps(node))

    def of_module(self, module: str, name: str) -> bool | None:
        """Whether a function of a module is a generator; None if there is no such function."""
        known = self.by_name.get(module)
        return known.functions.get(name) if known else None

    def of_class(self, name: str, method: str, seen: frozenset[str] = frozenset()) -> bool | None:
        """Whether a method of a class or its bases is a generator; None if there is none."""
        for node in self.classes.get(name, []):
            found = _functions(node).get(method)
            if found is not None:
                return found
            for base in _bases(node):
                if base not in seen:
                    found = self.of_class(base, method, seen | {name})
                if found is not None:
                    return found
        return None

    def by_any(self, name: str, *, inside_generator: bool) -> bool:
        """Whether a method of an unknown object is a generator, by its name alone."""
        kinds = self.kinds.get(name, set())
        is_clear = kinds == {True} and name not in FOREIGN
        return is_clear or (inside_generator and True in kinds)


class Visitor(ast.NodeVisitor):
    """Walks a module and finds the dropped calls; knows the class and function it is in."""

    def __init__(self, package: Package, module: Module) -> None:
        self._package, self._module = package, module
        self._class: str | None = None
        self._inside_generator = False
        self._found: list[Finding] = []

    def check(self) -> list[Finding]:
        """The findings of the module."""
        self.visit(self._module.tree)
        return self._found

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self._class = self._class, node.name
        self.generic_visit(node)
        self._class = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def _visit_function(self, node: Function) -> None:
        before, self._inside_generator = self._inside_generator, returns_steps(node)
        self.generic_visit(node)
        self._inside_generator = before

    def visit_Expr(self, node: ast.Expr) -> None:
        self._refuse(node.value, "its result is dropped, so it does nothing")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> None:
        self._refuse_condition(node.test)
        self.generic_visit(node)

    visit_While = visit_IfExp = visit_Assert = visit_If

    def _refuse_condition(self, node: ast.expr) -> None:
        operands = node.values if isinstance(node, ast.BoolOp) else [node]
        for operand in operands:
            value = operand.operand if isinstance(operand, ast.UnaryOp) else operand
            self._refuse(value, "as a condition it is always true")

    def _refuse(self, node: ast.expr, what: str) -> None:
        if not isinstance(node, ast.Call) or ast.unparse(node.func) in PLAIN:
            return
        if self._is_generator(node.func):
            text = f"{ast.unparse(node.func)}() returns Steps: {what}. {ADVICE}"
            self._found.append(Finding(self._module.path, node.lineno, text))

    def _is_generator(self, called: ast.expr) -> bool:
        found: bool | None = None
        match called:
            case ast.Name(id=name):
                return bool(self._of_name(name))
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if self._class:
                found = self._package.of_class(self._class, name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                found = self._of_owner(owner, name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                found = self._of_base(name)
            case ast.Attribute(attr=name):
                pass
            case _:
                return False
        if found is not None:
            return found
        return self._package.by_any(name, inside_generator=self._inside_generator)

    def _of_name(self, name: str) -> bool | None:
        if name in self._module.functions:
            return self._module.functions[name]
        module, _, original = self._module.imports.get(name, "").rpartition(".")
        return self._package.of_module(module, original)

    def _of_owner(self, owner: str, name: str) -> bool | None:
        """A function of an imported module; a method of another module is never a generator."""
        imported = self._module.imports.get(owner)
        if imported is None:
            return None
        return bool(
            self._package.of_module(imported, name)
            or self._package.of_class(imported.rpartition(".")[2], name)
        )

    def _of_base(self, name: str) -> bool:
        bases = _bases(self._module.classes[self._class]) if self._class else []
        return any(self._package.of_class(base, name) for base in bases)


def returns_steps(node: Function) -> bool:
    """Whether the return annotation is Steps[...], or a string of it."""
    if node.returns is None:
        return False
    return ast.unparse(node.returns).strip("'\"").startswith("Steps[")


def _functions(node: ast.Module | ast.ClassDef) -> Kinds:
    return {child.name: returns_steps(child) for child in node.body if isinstance(child, Function)}


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module imports, each with its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], alias.name


def _module_name(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "src" / "oncebox"))
