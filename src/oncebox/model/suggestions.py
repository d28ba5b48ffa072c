"""Suggestions for misspelled names: "did you mean ...?"."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from oncebox.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


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
                raise ConfigurationError(f"unknown option {name!r}, {suggestion(name, known)}")
        return function(*args, **kwargs)

    return checked
