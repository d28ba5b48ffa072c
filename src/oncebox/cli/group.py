"""Commands: settings from pyproject.toml, suggestions for typing errors, errors as one line."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from typing import Any

import click
from click.core import ParameterSource

from oncebox.cli.init import leave_process_one
from oncebox.cli.settings import APP, Settings, name_of, read_settings
from oncebox.database import ADVICE
from oncebox.errors import ConfigurationError, NotFound, OnceboxError, SchemaMissing

FAILURE, USAGE, MISSING, UNHEALTHY, PARTIAL = 1, 2, 3, 4, 5
"""Exit codes besides 0."""


class Commands(click.Group):
    """The commands of oncebox."""

    _settings = Settings()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leave_process_one()  # not in main(): that may be called by a program of somebody else's
        return super().__call__(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # we say it ourselves, once
            if "--help" not in ctx.args:  # help is had whatever is wrong
                self._settings = read_settings(self.commands.values())
            ctx.default_map = {name: self._settings.of(c) for name, c in self.commands.items()}
            return super().invoke(ctx)
        except click.BadParameter as error:
            self._blame(error)
            raise
        except OnceboxError as error:
            # Nobody who types a command has anything to settle.
            said = str(error).removesuffix(ADVICE).rstrip(":; ")
            click.secho(f"error: {said}", fg="red", err=True)
            if isinstance(error, SchemaMissing):
                app = next((a for a in sys.argv[1:] if ":" in a and "/" not in a), "")
                click.echo(f"try: oncebox migrate {app}".rstrip(), err=True)
            if isinstance(error, ConfigurationError):
                self._name_settings(ctx)
            ctx.exit(exit_code(error))

    def _blame(self, error: click.BadParameter) -> None:
        """Say where a wrong value is written, if that is in the settings."""
        option, context = error.param, error.ctx
        if isinstance(option, click.Option) and context is not None:
            source = context.get_parameter_source(str(option.name))
            if source is ParameterSource.DEFAULT_MAP:
                error.param_hint = self._settings.place(name_of(option))

    def _name_settings(self, ctx: click.Context) -> None:
        """Say which settings may have a part in it; no values, they may hold passwords."""
        command = self.commands.get(ctx.invoked_subcommand or "")
        names = self._settings.names(command) if command is not None else []
        if names:
            click.echo(f"{self._settings.file} has settings: {', '.join(names)}", err=True)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            name, command, rest = super().resolve_command(ctx, args)
            return name, command, self._with_app(command, rest)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near or "Did you mean" in error.message:
                raise
            hint = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(hint, ctx) from error

    def _with_app(self, command: click.Command | None, args: list[str]) -> list[str]:
        """The arguments, led by the APP of the settings where none of them is one."""
        app = os.environ.get("ONCEBOX_APP") or self._settings.values.get("app")
        takes = command is not None and any(p.name == "app" for p in command.params)
        if not app or not takes or any(APP.fullmatch(argument) for argument in args):
            return args
        return [str(app), *args]


def exit_code(error: OnceboxError) -> int:
    """What an error is for those who look at exit codes."""
    if isinstance(error, NotFound):
        return MISSING
    return USAGE if isinstance(error, ConfigurationError) else FAILURE
