"""Settings: the table [tool.oncebox] of pyproject.toml, checked against the options."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from oncebox.errors import ConfigurationError

APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""What names an inbox."""

INBOX = "app"
"""The one setting that is no option."""


class Settings(msgspec.Struct, frozen=True):
    """What a file says, by the names of the options."""

    file: Path | None = None
    values: dict[str, Any] = {}

    def of(self, command: click.Command) -> dict[str, Any]:
        """Those that are options of a command, by the names that click knows them by."""
        return {
            str(option.name): self.values[name]
            for name, option in _options(command)
            if name in self.values
        }

    def names(self, command: click.Command) -> list[str]:
        """Which of them concern a command."""
        known = [INBOX, *(name for name, _ in _options(command))]
        return [name for name in self.values if name in known]

    def place(self, name: str) -> str:
        """Where a setting is written."""
        return f"{name!r} in [tool.oncebox] of {self.file}"


def read_settings(commands: Iterable[click.Command]) -> Settings:
    """The settings of the nearest pyproject.toml. Raises ConfigurationError with a remedy."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            found = Settings(file, _table(file))
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
            raise ConfigurationError(f"{name!r} in {file} is no table: write [tool.oncebox]")
    return table


def _check(settings: Settings, commands: list[click.Command]) -> None:
    """Refuse what no command knows, and what is of another type than its option."""
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
            f'{settings.place(INBOX)} names no inbox: write "module:attribute", as in '
            f'"billing:inbox", not {value!r}'
        )


def _check_type(settings: Settings, name: str, value: Any, option: click.Option) -> None:
    kinds, words = _kinds(option)
    if type(value) not in kinds:  # not isinstance: True is no number
        raise ConfigurationError(f"{settings.place(name)} is {words}, not {value!r}")


def _kinds(option: click.Option) -> tuple[tuple[type, ...], str]:
    """The types of TOML that an option takes, and what they are called."""
    if option.is_flag:
        return (bool,), "true or false"
    if isinstance(option.type, click.types.IntParamType):
        return (int,), "a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        return (int, float), "a number"
    return (str,), "a text in quotes"


def _unknown(settings: Settings, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(_dashed(name), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
    return f"unknown setting {settings.place(name)}, {hint}"


def _dashed(name: str) -> str:
    """A name as options have it: log_level is log-level."""
    return name.replace("_", "-")


def _options(command: click.Command) -> list[tuple[str, click.Option]]:
    """The options of a command, each with its name as users write it."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return [(name_of(option), option) for option in options]


def name_of(option: click.Option) -> str:
    """The long name of an option, without its dashes."""
    return max(option.opts, key=len).lstrip("-")
