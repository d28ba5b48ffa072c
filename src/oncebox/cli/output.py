"""Output: tables for people, JSON for programs. Text of messages is escaped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PIPED_WIDTH = 1_000
"""Columns without a terminal: nothing is cut, so that grep finds everything."""

console = Console(highlight=False, soft_wrap=False)
if not console.is_terminal and "COLUMNS" not in os.environ:
    console.width = PIPED_WIDTH

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def print_json(value: Any) -> None:
    """Print a value as JSON, one line per element of a list."""
    for element in value if isinstance(value, list) else [value]:
        click.echo(msgspec.json.encode(element, enc_hook=str).decode())


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print rows under titles, or the text `empty` if there are none."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for title in titles:
        numeric = title.endswith("#")
        table.add_column(title.removesuffix("#").strip(), justify="right" if numeric else "left")
    count = 0
    for count, row in enumerate(rows, start=1):  # noqa: B007 - counted
        table.add_row(*(text(cell) for cell in row))
    if count:
        console.print(table)
    else:
        console.print(escape(empty))


def text(value: Any) -> str:
    """A value as the text of a table cell."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape(printable(str(value)))


def printable(value: str) -> str:
    """Text without control characters, which could change the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in value)


def age(moment: datetime | None) -> str:
    """The time since a moment, such as 5 min; "-" if there is none."""
    if moment is None:
        return "-"
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def number(count: int) -> str:
    """A count; the databases stop counting at a hundred thousand."""
    return f"{count - 1:,}+" if count > 100_000 else f"{count:,}"


class Bar(Progress):
    """A progress bar that is set to the number done so far."""

    def set_done(self, done: int) -> None:
        self.update(self.task_ids[0], completed=done)


def progress_bar(verb: str, total: int | None) -> Bar:
    """A progress bar on stderr; `total` is None if it is unknown."""
    bar = Bar(
        TextColumn(verb),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(verb, total=total)
    return bar
