"""Options: keyword arguments whose misspelling is met with a suggestion."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from oncebox.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


def checked_options(function: Callable[P, R]) -> Callable[P, R]:
    """Raise ConfigurationError, with the nearest name, for an option that does not exist."""
    known = list(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                options = ", ".join(option for option in known if option != "self")
                hint = f"did you mean {near[0]!r}?" if near else f"the options are {options}"
                raise ConfigurationError(f"unknown option {name!r}, {hint}")
        return function(*args, **kwargs)

    return checked
