"""The argument APP: imports an inbox, and calls its sync or async methods."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeVar

import click

from oncebox.errors import ConfigurationError
from oncebox.inbox import Inbox

F = TypeVar("F", bound=Callable[..., Any])


class App(click.ParamType):  # type: ignore[type-arg] # not generic in every version of click
    """An inbox, given as module:attribute."""

    name = "app"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, Reference):
            return value
        module, _, attribute = str(value).partition(":")
        if not module or not attribute:
            self.fail(f"{value!r} is not an inbox: write module:attribute, as in billing:inbox")
        if "/" in module or module.endswith(".py"):
            dotted = ".".join(Path(module).with_suffix("").parts)
            self.fail(f"{value!r} names a file: write the module, as in {dotted}:{attribute}")
        return Reference(module, attribute)


class Reference:
    """The module and attribute of an inbox; the module is imported on first use."""

    def __init__(self, module: str, attribute: str) -> None:
        self.module = module
        self.attribute = attribute

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"

    def load(self) -> Inbox:
        """Import the inbox. Raises ConfigurationError."""
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            _set_up_django()
            module = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.module}.".startswith(f"{error.name}."):
                raise ConfigurationError(_cannot_import(self.module, error)) from error
            raise ConfigurationError(
                f"there is no module {self.module!r} here: run oncebox in the folder of "
                f"{self.module.replace('.', '/')}.py, or install the module"
            ) from error
        except Exception as error:
            raise ConfigurationError(_cannot_import(self.module, error)) from error
        found = getattr(module, self.attribute, None)
        if isfunction(found):
            raise ConfigurationError(
                f"{self} is a function, not an Inbox: call it in the module, and name its result"
            )
        if not isinstance(found, Inbox):
            raise ConfigurationError(
                f"module {self.module!r} has no inbox {self.attribute!r}: {_inboxes_of(module)}"
            )
        return found


def _set_up_django() -> None:
    """Load Django's settings and apps, if DJANGO_SETTINGS_MODULE is set: models need them."""
    if os.environ.get("DJANGO_SETTINGS_MODULE") and find_spec("django"):
        import django

        django.setup()


def _inboxes_of(module: Any) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Inbox)]
    return f"it has {', '.join(names)}" if names else "it has no Inbox at all"


def _cannot_import(module: str, error: Exception) -> str:
    """The error of the user's module, with the file and line in it."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path.cwd())
    theirs = [f for f in frames if f.filename.startswith(here)]
    where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    return f"cannot import module {module!r}: {type(error).__name__}: {error}{where}"


class AppArgument(click.Argument):
    """The argument APP; the error without one says how to give it."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        if self.value_is_missing(value) and not ctx.resilient_parsing:
            raise click.UsageError(
                "APP is missing: write module:attribute, such as billing:inbox; or set "
                "ONCEBOX_APP, or app in [tool.oncebox]",
                ctx,
            )
        return super().process_value(ctx, value)


def app_argument(command: F) -> F:
    """The argument APP of a command."""
    return click.argument("app", cls=AppArgument, type=App(), envvar="ONCEBOX_APP")(command)


def called(inbox: Inbox, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a method of an inbox, or its async variant if the inbox is async; close the inbox."""
    if not inbox.is_async:
        with inbox:
            return method(*args, **options)
    owner = method.__self__  # type: ignore[attr-defined]
    amethod = getattr(owner, f"a{method.__name__}")

    async def awaited() -> Any:
        async with inbox:
            try:
                return await amethod(*args, **options)
            finally:  # connections of the user's engine must not outlive this event loop
                engine = getattr(inbox._engine.connection.current, "engine", None)
                if engine is not None:
                    await engine.dispose()

    return asyncio.run(awaited())
