"""Output for people: tables, notes and progress. Text of messages is escaped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

console = Console(highlight=False, soft_wrap=False)
"""Standard output. It has colors on a terminal, unless NO_COLOR is set."""

GAP = "  "
"""What separates the columns of a table."""

NARROWEST = 24
"""The least width of a column that may wrap."""

ATTENTION, WARNING = "red", "yellow"
"""Colors: act now; look at this."""

STATE_STYLES = {"dead": ATTENTION, "quarantined": WARNING}


def print_line(line: str | Text, style: str = "") -> None:
    """Print a line to standard output. It is neither cut nor wrapped."""
    console.print(_as_text(line), style=style or None, soft_wrap=True)


def note(line: str, style: str = "") -> None:
    """Print a line for the person at the terminal to standard error."""
    stderr = Console(stderr=True, highlight=False)
    stderr.print(Text(printable(line)), style=style or None, soft_wrap=True)


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, wraps: str = ""
) -> None:
    """Print rows under titles, or the text `empty` if there are none.

    Titles of numbers end with "#". Nothing is cut: if a terminal is too narrow, the column `wraps`
    is wrapped; if that is not enough, each row is printed as a list of its values. A pipe gets one
    line per row.
    """
    names = [title.removesuffix("#").rstrip() for title in titles]
    table = [[_cell(value) for value in row] for row in rows]
    if not table:
        print_line(empty)
        return
    widths = [max(cell_len(cell.plain) for cell in column) for column in zip(*table, strict=True)]
    widths = [max(width, cell_len(name)) for width, name in zip(widths, names, strict=True)]
    total = sum(widths) + len(GAP) * (len(widths) - 1)
    least = total
    if wraps:
        least -= max(0, widths[names.index(wraps)] - NARROWEST)
    if not sys.stdout.isatty() or total <= console.width:
        _print_rows(titles, names, table, widths)
    elif least <= console.width:
        _print_wrapped(titles, names, table, wraps)
    else:
        _print_vertically(names, table)


def _print_rows(
    titles: Sequence[str], names: Sequence[str], table: list[list[Text]], widths: list[int]
) -> None:
    for row in ([Text(name, "bold") for name in names], *table):
        line = Text()
        for title, cell, width in zip(titles, row, widths, strict=True):
            padding = " " * (width - cell_len(cell.plain))
            parts = (padding, cell) if title.endswith("#") else (cell, padding)
            line = Text.assemble(line, *parts, GAP)
        line.rstrip()
        print_line(line)


def _print_wrapped(
    titles: Sequence[str], names: Sequence[str], table: list[list[Text]], wraps: str
) -> None:
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, len(GAP), 0, 0))
    for title, name in zip(titles, names, strict=True):
        justify: Any = "right" if title.endswith("#") else "left"
        grid.add_column(name, justify=justify, no_wrap=name != wraps, overflow="fold")
    for row in table:
        grid.add_row(*row)
    console.print(grid)


def _print_vertically(names: Sequence[str], table: list[list[Text]]) -> None:
    for index, row in enumerate(table):
        if index:
            print_line("")
        print_properties(zip(names, row, strict=True))


def print_properties(properties: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one per line. Values without text are left out."""
    shown = [(name, _property(value)) for name, value in properties if value not in (None, "")]
    shown = [(name, value) for name, value in shown if value.plain]
    width = max((cell_len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print_line(Text.assemble((f"{name:<{width}}", "bold"), GAP, value))


def styled_state(state: str) -> Text:
    """The name of a state, colored if it needs attention."""
    return Text(printable(state), STATE_STYLES.get(state, ""))


def _cell(value: Any) -> Text:
    """A value in one line."""
    if isinstance(value, Text):
        return value
    return Text(text(value).replace("\n", "\\n").replace("\t", " "))


def _property(value: Any) -> Text:
    return value if isinstance(value, Text) else Text(text(value))


def _as_text(line: str | Text) -> Text:
    return line if isinstance(line, Text) else Text(line)


def text(value: Any) -> str:
    """A value as text for people."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def printable(value: str) -> str:
    """Text without control characters, which could change the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in value)


def duration(seconds: float) -> str:
    """A time span, such as 5 min."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def ago(moment: datetime | None) -> str:
    """How long ago a moment was, such as 5 min ago; "-" if there is none."""
    if moment is None:
        return "-"
    return f"{duration((datetime.now(UTC) - moment).total_seconds())} ago"


def capped_number(count: int) -> str:
    """A count of the status, which stops counting at a hundred thousand."""
    return f"{count - 1:,}+" if count > 100_000 else f"{count:,}"


def capped_count(count: int, noun: str) -> str:
    """As counted(), for a count of the status."""
    return f"{capped_number(count)} {noun if count == 1 else noun + 's'}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its unit, such as 1 message or 12 messages."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


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
