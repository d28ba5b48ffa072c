"""Options and prompts of the commands that change data, and their parameter types."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import click

why_option = click.option("--why", help="The reason, for the audit log; prompted on a terminal.")
by_option = click.option("--by", envvar="ONCEBOX_BY", help="Your name; default: your user name.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def prompted_why() -> str:
    """The reason for an action, from the terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError('--why "..." is required: it is recorded in the audit log')
    why: str = click.prompt("Why", err=True)
    return why


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless `yes`; end the command if the answer is no."""
    if not yes:
        click.confirm(question, abort=True, err=True)


class Span(click.ParamType):  # type: ignore[type-arg] # not generic in every version of click
    """A time span such as 90s, 15m, 2h or 7d."""

    name = "span"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, timedelta):
            return value
        span = _span(str(value))
        if span is None:
            self.fail(f"{value!r} is not a time span: write 90s, 15m, 2h or 7d")
        return span


def _span(value: str) -> timedelta | None:
    match = re.fullmatch(r"(\d+)\s*(s|m|h|d)", value)
    if match is None:
        return None
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[match[2]]
    return timedelta(**{unit: int(match[1])})


class Moment(click.ParamType):  # type: ignore[type-arg] # not generic in every version of click
    """A time: 2026-07-14, 2026-07-14T09:30 (UTC by default), or a time span ago such as 2h."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, datetime):
            return value
        if (span := _span(str(value))) is not None:
            return datetime.now(UTC) - span
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time: write 2026-07-14, 2026-07-14T09:30 or 2h (ago)")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
