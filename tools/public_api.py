"""Print the public API of oncebox: every public name with its signature, one per line, sorted.

`make api` writes it to tests/public_api.txt; a test compares the two.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import oncebox
from oncebox import errors, testing

Lines = Iterator[str]


class Unquoted(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def public_api() -> str:
    """The text of the snapshot."""
    lines = {
        *_names_of(oncebox, oncebox.__all__),
        *_names_of(testing, testing.__all__),
        *_names_of(errors, _own_names(errors)),
        *_operations(oncebox.Inbox("api", "sqlite:///api.db")),
    }
    return "\n".join(sorted(lines)) + "\n"


def _own_names(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def _names_of(module: ModuleType, names: list[str]) -> Lines:
    for name in names:
        yield from _describe(f"{module.__name__}.{name}", getattr(module, name))


def _describe(path: str, value: Any) -> Lines:
    if not isinstance(value, type):
        yield f"{path}{_signature(value)}"
    elif issubclass(value, enum.Enum):
        yield from (f"{path}.{member.name} = {member.value!r}" for member in value)
    elif issubclass(value, BaseException):
        yield f"{path}({', '.join(base.__name__ for base in value.__bases__)})"
    else:
        yield f"{path}{_signature(value)}"
        yield from _methods(path, value)


def _methods(path: str, kind: type) -> Lines:
    """The public methods and properties of a class, those of its bases in oncebox included.

    Methods that return Steps are for oncebox itself. The sync and async methods that are made from
    them have a signature of their own, and are public.
    """
    bases = [base for base in kind.__mro__ if base.__module__.startswith("oncebox")]
    names = {name for base in bases for name in vars(base) if not name.startswith("_")}
    for name in names:
        member = getattr(kind, name)
        text = _member(member)
        if hasattr(member, "__signature__"):
            text = re.sub(r"-> Steps\[(.*)\]$", r"-> \1", text)
        if text and "-> Steps[" not in text:
            yield f"{path}.{name}{text}"


def _member(member: Any) -> str:
    """The signature of a method, the type of a property, and nothing for a field."""
    if isinstance(member, property) and member.fget:
        return f": {inspect.signature(member.fget).return_annotation}"
    return _signature(member) if callable(member) else ""


def _operations(inbox: oncebox.Inbox) -> Lines:
    """What is reached by an attribute of an inbox, such as `inbox.replays`."""
    for name, value in vars(inbox).items():
        kind = type(value)
        if not name.startswith("_") and kind.__module__.startswith("oncebox.operations"):
            yield from _methods(f"oncebox.Inbox.{name}", kind)


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [
        _shown(parameter) for name, parameter in signature.parameters.items() if name != "self"
    ]
    returned = _unquoted(signature.return_annotation)
    return str(signature.replace(parameters=parameters, return_annotation=returned))


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(
        annotation=_unquoted(parameter.annotation), default=_named(parameter.default)
    )


def _named(default: Any) -> Any:
    """A default that is a function or a member of an enum, by its name."""
    if isinstance(default, enum.Enum):
        return Unquoted(default.name)
    return Unquoted(default.__name__) if inspect.isfunction(default) else default


def _unquoted(annotation: Any) -> Any:
    return Unquoted(annotation) if isinstance(annotation, str) else annotation


if __name__ == "__main__":
    print(public_api(), end="")
