"""Suggestions for misspelled names: "did you mean ...?"."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

import msgspec

from oncebox.errors import ConfigurationError
from oncebox.model.retention import Retention
from oncebox.model.retry import Retry
from oncebox.model.sequencing import Gaps

P = ParamSpec("P")
R = TypeVar("R")

_POLICIES: dict[str, type[msgspec.Struct]] = {"retry": Retry, "retention": Retention, "gaps": Gaps}
"""The options whose value is an object with options of its own."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """The most similar known name as a question, or all known names if none is similar."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def checked_options(function: Callable[P, R]) -> Callable[P, R]:
    """Raise ConfigurationError with a suggestion for a keyword argument that does not exist."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                help = _of_policy(name, kwargs[name], known) or suggestion(name, known)
                raise ConfigurationError(f"unknown option {name!r}, {help}")
        return function(*args, **kwargs)

    return checked


def _of_policy(name: str, value: object, known: Iterable[str]) -> str | None:
    """How to pass an option that belongs to a policy such as Retry; None if it does not."""
    for option in known:
        policy = _POLICIES.get(option)
        if policy is not None and name in policy.__struct_fields__:
            return f"write {option}={policy.__name__}({name}={value!r})"
    return None
