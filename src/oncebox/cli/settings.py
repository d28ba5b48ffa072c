"""Settings: reads the table [tool.oncebox] of pyproject.toml and checks it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from oncebox.errors import ConfigurationError
from oncebox.model.suggestions import suggestion

APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""The form of an APP: module:attribute."""

INBOX = "app"
"""The only setting that is not an option."""


class Settings(msgspec.Struct, frozen=True):
    """The settings of a file, by the long names of the options."""

    file: Path | None = None
    values: dict[str, Any] = {}

    def of(self, command: click.Command) -> dict[str, Any]:
        """The settings that are options of a command, by the names that click uses."""
        return {
            str(option.name): self.values[name]
            for name, option in _options(command)
            if name in self.values
        }

    def names(self, command: click.Command) -> list[str]:
        """The names of the settings that a command uses."""
        known = [INBOX, *(name for name, _ in _options(command))]
        return [name for name in self.values if name in known]

    def place(self, name: str) -> str:
        """The name and the file of a setting, for errors."""
        return f"{name!r} in [tool.oncebox] of {self.file}"


def read_settings(commands: Iterable[click.Command]) -> Settings:
    """The settings of the nearest pyproject.toml. Raises ConfigurationError."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            found = Settings(file, _table(file))
            if found.values:
                _check(found, [command for command in commands if not command.hidden])
            return Settings(file, {_dashed(name): value for name, value in found.values.items()})
    return Settings()


def _table(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    for name in ("tool", "oncebox"):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"{name!r} in {file} is not a table: write [tool.oncebox]")
    return table


def _check(settings: Settings, commands: list[click.Command]) -> None:
    """Raise ConfigurationError for unknown names and for values of a wrong type."""
    options = dict(pair for command in commands for pair in _options(command))
    for name, value in settings.values.items():
        if name == INBOX:
            _check_app(settings, value)
        elif _dashed(name) not in options:
            raise ConfigurationError(_unknown(settings, name, [INBOX, *options]))
        else:
            _check_type(settings, name, value, options[_dashed(name)])


def _check_app(settings: Settings, value: Any) -> None:
    if not isinstance(value, str) or not APP.fullmatch(value):
        raise ConfigurationError(
            f'{settings.place(INBOX)} must be "module:attribute", as in "billing:inbox", '
            f"got {value!r}"
        )


def _check_type(settings: Settings, name: str, value: Any, option: click.Option) -> None:
    kinds, words = _kinds(option)
    if type(value) not in kinds:  # not isinstance: True is an int
        raise ConfigurationError(f"{settings.place(name)} must be {words}, got {value!r}")


def _kinds(option: click.Option) -> tuple[tuple[type, ...], str]:
    """The TOML types of an option, and their name in errors."""
    from oncebox.cli.processes import HealthAddress  # here, so that `oncebox --help` is fast

    if option.is_flag:
        return (bool,), "true or false"
    if isinstance(option.type, click.types.IntParamType):
        return (int,), "a whole number"
    if isinstance(option.type, HealthAddress):
        return (int, str), 'a port, or text such as "0.0.0.0:8086"'
    if isinstance(option.type, click.types.FloatParamType):
        return (int, float), "a number"
    return (str,), "text in quotes"


def _unknown(settings: Settings, name: str, known: list[str]) -> str:
    return f"unknown setting {settings.place(name)}, {suggestion(_dashed(name), sorted(known))}"


def _dashed(name: str) -> str:
    """A name in the form of options: log_level becomes log-level."""
    return name.replace("_", "-")


def _options(command: click.Command) -> list[tuple[str, click.Option]]:
    """The options of a command by their long names."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return [(name_of(option), option) for option in options]


def name_of(option: click.Option) -> str:
    """The long name of an option, without its dashes."""
    return max(option.opts, key=len).lstrip("-")
