"""The group of commands: reads settings, suggests names, prints errors in one line."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import click
from click.core import ParameterSource

from oncebox.cli.settings import APP, Settings, name_of, read_settings
from oncebox.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    NotFound,
    OnceboxError,
    SchemaMissing,
)
from oncebox.model.suggestions import suggestion

FAILURE, USAGE, MISSING, UNHEALTHY, PARTIAL = 1, 2, 3, 4, 5
"""Exit codes besides 0."""


class Commands(click.Group):
    """The commands of oncebox."""

    _settings = Settings()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() == 1:  # not in main(), which other programs may call
            from oncebox.services.process_one import leave_process_one

            leave_process_one()
        return super().__call__(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # we report it ourselves
            if "--help" not in ctx.args:  # help works even with wrong settings
                self._settings = read_settings(self.commands.values())
            if self._settings.values:  # otherwise only one command is imported
                ctx.default_map = {n: self._settings.of(c) for n, c in self.commands.items()}
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            known = error.ctx.command.params if error.ctx is not None else []
            if error.option_name == "--workers" and any("--processes" in p.opts for p in known):
                text = "No such option '--workers': did you mean --processes?"
                raise click.UsageError(text, error.ctx) from error
            raise
        except click.BadParameter as error:
            self._add_place(error)
            raise
        except OnceboxError as error:
            self._print(ctx, error)
            ctx.exit(exit_code(error))

    def _print(self, ctx: click.Context, error: OnceboxError) -> None:
        from oncebox.cli.output import ATTENTION, note
        from oncebox.storage.drivers.transactions import NOT_KNOWN_COMMITTED

        text = str(error).removesuffix(NOT_KNOWN_COMMITTED).rstrip(":; ")  # commands do not ack
        if isinstance(error, DatabaseUnavailable) and text.startswith("cannot connect"):
            text += ": check the URL, and that the server runs"
        note(f"error: {text}", style=ATTENTION)
        if isinstance(error, SchemaMissing) and "manage.py" not in text:
            app = next((a for a in sys.argv[1:] if ":" in a and "/" not in a), "")
            # A missing file may also mean that this is the wrong folder.
            when = "if the database is new" if "does not exist" in text else "try"
            click.echo(f"{when}: oncebox migrate {app}".rstrip(), err=True)
        if isinstance(error, ConfigurationError):
            self._print_settings(ctx)

    def _add_place(self, error: click.BadParameter) -> None:
        """Add the file to the error of an option that is set in pyproject.toml."""
        option, context = error.param, error.ctx
        if isinstance(option, click.Option) and context is not None:
            source = context.get_parameter_source(str(option.name))
            if source is ParameterSource.DEFAULT_MAP:
                error.param_hint = self._settings.place(name_of(option))

    def _print_settings(self, ctx: click.Context) -> None:
        """Name the settings that may cause an error, without values: they may be passwords."""
        command = self.commands.get(ctx.invoked_subcommand or "")
        names = self._settings.names(command) if command is not None else []
        if names:
            click.echo(f"{self._settings.file} has settings: {', '.join(names)}", err=True)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            name, command, rest = super().resolve_command(ctx, args)
            return name, command, self._with_app(command, rest)
        except click.UsageError as error:
            if "Did you mean" in error.message:  # newer versions of click
                raise
            shown = [name for name, command in self.commands.items() if not command.hidden]
            hint = f"{error.message} {suggestion(args[0], shown).capitalize()}"
            raise click.UsageError(hint, ctx) from error

    def _with_app(self, command: click.Command | None, args: list[str]) -> list[str]:
        """The arguments, preceded by the APP of the settings unless the first one is an APP."""
        app = os.environ.get("ONCEBOX_APP") or self._settings.values.get("app")
        if not app or command is None or all(p.name != "app" for p in command.params):
            return args
        first = next(_positional(command, args), "")
        return args if _names_app(first) else [str(app), *args]


def _positional(command: click.Command, args: list[str]) -> Iterator[str]:
    """The arguments that are neither options nor values of options."""
    options = [p for p in command.params if isinstance(p, click.Option)]
    with_value = {name for o in options if not (o.is_flag or o.count) for name in o.opts}
    is_value = False
    for arg in args:
        if not is_value and not arg.startswith("-"):
            yield arg
        is_value = not is_value and arg in with_value


def _names_app(argument: str) -> bool:
    """Whether an argument has the form of an APP, and its module can be found."""
    if not APP.fullmatch(argument):
        return False
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return find_spec(argument.partition(":")[0].partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def exit_code(error: OnceboxError) -> int:
    """The exit code for an error."""
    if isinstance(error, NotFound):
        return MISSING
    return USAGE if isinstance(error, ConfigurationError) else FAILURE
