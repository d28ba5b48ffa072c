"""The view of the demo: live on a terminal, or as plain lines."""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from oncebox.cli.demo.state import State
from oncebox.cli.demo.verdict import RESULT, money, verdict

LINE_EVERY = 5.0
"""Seconds between two lines if there is no terminal."""

DOUBLES = (AFTER_KILL, BY_CLICK) = ("booked twice after kill -9", "booked twice by a double click")
"""Errors that no later message can undo: they are red before the end, too."""

WIDEST = 100
FIXED_LINES = 17
"""Lines of the view besides those of the events."""

MOST_EVENTS, LAST_EVENTS = 12, 4
"""Events that are shown, during the run and at its end."""


def watch(states: Iterable[State], console: Console) -> None:
    """Show the states until the end: as a live view on a terminal, else as lines."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for state in states:
                live.update(render(state, console), refresh=True)
    else:
        _print_lines(states)


def _print_lines(states: Iterable[State]) -> None:
    shown, phase, noted = 0.0, "", 0
    for state in states:
        for event in state.events[noted:]:
            click.echo(event)
        noted = len(state.events)
        if state.seconds - shown >= LINE_EVERY or state.phase != phase:
            shown, phase = state.seconds, state.phase
            click.echo(_line(state))
    for name, *cells in rows(state):
        click.echo(f"{name:32}" + "".join(f"{cell:>16}" for cell in cells))


def _line(state: State) -> str:
    return (
        f"{state.seconds:5.1f} s  {state.phase}: {state.expected.payments:,} payments sent, "
        f"{state.oncebox.balance.booked:,} booked by oncebox, "
        f"{state.naive.balance.booked:,} by the naive consumer"
    )


def render(state: State, console: Console) -> Group:
    """The whole view, for this size of the terminal."""
    width = min(console.width, WIDEST)
    most = LAST_EVENTS if state.is_over else MOST_EVENTS
    free = min(console.height - FIXED_LINES, most)
    last = state.events[-free:] if free > 0 else []
    parts: list[RenderableType] = [
        Text(f"{state.seconds:.0f} s  {state.phase}", style="bold"),
        ProgressBar(total=state.length, completed=state.seconds, width=width),
        Text("\n"),
        _stream(state),
        Text(),
        _table(state, width),
        Text(),
        *(Text(event, style="dim", no_wrap=True, overflow="ellipsis") for event in last),
    ]
    return Group(*parts)


def _stream(state: State) -> Text:
    expected = state.expected
    return Text(
        f"The shop sent {expected.payments:,} payments in {expected.deliveries:,} messages: "
        f"{expected.repeated:,} repeated, {expected.doubled:,} double clicks."
    )


def _table(state: State, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", width=width)
    table.add_column("", ratio=2)
    for title in ("expected", "naive consumer", "oncebox"):
        table.add_column(title, justify="right", ratio=1)
    for name, expected, *sides in rows(state):
        is_known = state.is_over or name in DOUBLES
        table.add_row(name, expected, *(_marked(c, expected if is_known else "") for c in sides))
    return table


def rows(state: State) -> list[tuple[str, str, str, str]]:
    """The rows of the table: a name, what is right, the naive consumer, oncebox."""
    theirs, ours = state.naive.balance, state.oncebox.balance
    return [
        _row("processes killed by kill -9", None, state.naive.kills, state.oncebox.kills),
        _row("payments booked", state.expected.payments, theirs.booked, ours.booked),
        _row(AFTER_KILL, 0, theirs.twice_after_kill, ours.twice_after_kill),
        _row(BY_CLICK, 0, theirs.twice_by_click, ours.twice_by_click),
        *_missing(state),
        ("duplicates absorbed", "", "", f"{state.absorbed:,}"),
        ("dead letters waiting / retried", "", "", f"{state.dead:,} / {state.retried:,}"),
    ]


def _missing(state: State) -> list[tuple[str, str, str, str]]:
    """What is not booked: lost, if both sides have finished."""
    theirs, ours, sent = state.naive.balance, state.oncebox.balance, state.expected.payments
    if not (state.is_over and state.naive.is_finished and state.oncebox.is_finished):
        return [_row("not booked yet", None, sent - theirs.booked, sent - ours.booked)]
    return [
        _row("payments lost", 0, theirs.lost, ours.lost),
        ("accounts off by", money(0), money(theirs.cents_off), money(ours.cents_off)),
    ]


def _row(name: str, *values: int | None) -> tuple[str, str, str, str]:
    expected, theirs, ours = ("" if value is None else f"{value:,}" for value in values)
    return name, expected, theirs, ours


def _marked(cell: str, expected: str) -> Text:
    if not expected:
        return Text(cell)
    return Text(cell, "green" if cell == expected else "red")


def print_verdict(state: State, console: Console) -> None:
    """Print what happened; the result of oncebox is green or red."""
    sentences = verdict(state)
    console.print()
    for sentence in sentences:
        is_result = sentence == sentences[RESULT] and not state.is_interrupted
        tone = "green" if state.is_balanced else "red"
        console.print(sentence, style=f"bold {tone}" if is_result else "", highlight=False)
