"""Asking: what commands that change something have in common."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import click

why_option = click.option("--why", help="Written down with the deed; asked for on a terminal.")
by_option = click.option("--by", envvar="ONCEBOX_BY", help="Who you are; default: your user name.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def asked_why() -> str:
    """Why somebody does it."""
    if not sys.stdin.isatty():
        raise click.UsageError('say why, it is written down: --why "..."')
    why: str = click.prompt("Why", err=True)
    return why


class Span(click.ParamType):  # type: ignore[type-arg] # not everywhere generic
    """A time span such as 90s, 15m, 2h or 7d."""

    name = "span"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, timedelta):
            return value
        span = _span(str(value))
        if span is None:
            self.fail(f"{value!r} is no time span: write 90s, 15m, 2h or 7d")
        return span


def _span(value: str) -> timedelta | None:
    match = re.fullmatch(r"(\d+)\s*(s|m|h|d)", value)
    if match is None:
        return None
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[match[2]]
    return timedelta(**{unit: int(match[1])})


class Moment(click.ParamType):  # type: ignore[type-arg] # not everywhere generic
    """A time: 2026-07-14, 2026-07-14T09:30 (UTC, or with its zone), or a span ago such as 2h."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, datetime):
            return value
        if (span := _span(str(value))) is not None:
            return datetime.now(UTC) - span
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time: write 2026-07-14, 2026-07-14T09:30 or 2h (ago)")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
