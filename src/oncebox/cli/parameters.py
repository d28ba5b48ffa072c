"""Types of options and arguments: times, time spans, and words with suggestions."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from oncebox.model.suggestions import suggestion


class Word(click.Choice):  # type: ignore[type-arg] # not generic in every version of click
    """One of some words. An unknown word is an error that suggests the nearest one."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        known = [str(choice) for choice in self.choices]
        if str(value) not in known:
            what = param.name if param is not None else "value"
            if what == "state" and value == "failed" and "pending" in known:
                self.fail("unknown state 'failed': failed messages are pending", param, ctx)
            self.fail(f"unknown {what} {value!r}, {suggestion(str(value), known)}", param, ctx)
        return str(value)


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


def _span(value: str) -> timedelta | None:
    match = re.fullmatch(r"(\d{1,6})\s*(s|m|h|d)", value)
    if match is None:
        return None
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[match[2]]
    return timedelta(**{unit: int(match[1])})
