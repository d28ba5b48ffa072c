"""Commands: settings from pyproject.toml, suggestions for typing errors, errors as one line."""

from __future__ import annotations

import difflib
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import click

from oncebox.cli.init import leave_process_one
from oncebox.errors import ConfigurationError, NotFound, OnceboxError, SchemaMissing

FAILURE, USAGE, MISSING, UNHEALTHY, PARTIAL = 1, 2, 3, 4, 5
"""Exit codes besides 0."""


class Commands(click.Group):
    """The commands of oncebox."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leave_process_one()  # not in main(): that may be called by a program of somebody else's
        return super().__call__(*args, **kwargs)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        self._settings = _settings()
        defaults = {name: self._defaults(command) for name, command in self.commands.items()}
        kwargs.setdefault("default_map", defaults)
        return super().main(*args, **kwargs)

    def _defaults(self, command: click.Command) -> dict[str, Any]:
        """The settings that are options of a command, by the names that click knows them by."""
        found = {}
        for parameter in command.params:
            for option in parameter.opts:
                name = option.lstrip("-").replace("-", "_")
                if name in self._settings:
                    found[str(parameter.name)] = self._settings[name]
        return found

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OnceboxError as error:
            click.secho(f"error: {error}", fg="red", err=True)
            if isinstance(error, SchemaMissing):
                app = next((a for a in sys.argv[1:] if ":" in a and "/" not in a), "")
                click.echo(f"try: oncebox migrate {app}".rstrip(), err=True)
            ctx.exit(exit_code(error))

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
        app = os.environ.get("ONCEBOX_APP") or getattr(self, "_settings", {}).get("app")
        takes = command is not None and any(p.name == "app" for p in command.params)
        if not app or not takes or any(_APP.fullmatch(argument) for argument in args):
            return args
        return [str(app), *args]


_APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def exit_code(error: OnceboxError) -> int:
    """What an error is for those who look at exit codes."""
    if isinstance(error, NotFound):
        return MISSING
    return USAGE if isinstance(error, ConfigurationError) else FAILURE


def _settings() -> dict[str, Any]:
    """The table [tool.oncebox] of the nearest pyproject.toml, by the names of the options."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                table = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("oncebox", {})
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise click.ClickException(f"{file} cannot be read: {error}") from error
            return {name.replace("-", "_"): value for name, value in table.items()}
    return {}
