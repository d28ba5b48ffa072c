"""Command `demo`: payments with duplicates, kill -9, and a balance at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from oncebox.cli.commands import FAILURE
from oncebox.cli.demo.books import books_at
from oncebox.cli.demo.simulation import Simulation, Snapshot
from oncebox.cli.output import console
from oncebox.errors import ConfigurationError

LINE_EVERY = 5.0
"""Seconds between two lines if there is no terminal."""


@click.command()
@click.option(
    "--database", metavar="URL", help="postgresql://...; default: SQLite, in a new folder."
)
@click.option(
    "--seconds",
    type=click.FloatRange(5),
    default=30,
    show_default=True,
    help="How long the demo kills workers.",
)
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--keep", is_flag=True, help="Keep the databases.")
def demo(database: str | None, seconds: float, seed: int, keep: bool) -> None:
    """Process payments while workers are killed.

    The same payments go through oncebox and through a naive consumer. Needs no server. The exit
    code is 1 if the books of oncebox do not balance.
    """
    if database is not None and not database.startswith(("postgresql://", "postgres://")):
        raise ConfigurationError("the demo runs on SQLite, or with --database postgresql://...")
    with _folder(keep) as folder:
        url = database or f"sqlite:///{folder}"
        ours, theirs = books_at(url, "oncebox"), books_at(url, "naive")
        try:
            last = _watch(Simulation(folder, ours, theirs, seconds=seconds, seed=seed), seconds)
            balanced = _print_result(last)
            _how_to_check(ours.url if keep else None, folder, database)
        finally:
            if not keep:
                ours.drop()
                theirs.drop()
    if not balanced:
        raise SystemExit(FAILURE)


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    if keep:
        yield Path(tempfile.mkdtemp(prefix="oncebox-demo-"))
    else:
        with tempfile.TemporaryDirectory(
            prefix="oncebox-demo-", ignore_cleanup_errors=True
        ) as name:
            yield Path(name)


def _watch(simulation: Simulation, seconds: float) -> Snapshot:
    """Run the demo and show it. Returns the last snapshot."""
    return _watch_live(simulation, seconds) if console.is_terminal else _watch_plainly(simulation)


def _watch_live(simulation: Simulation, seconds: float) -> Snapshot:
    with Live(console=console, auto_refresh=False) as live:
        for snapshot in simulation.run():
            live.update(_render(snapshot, seconds), refresh=True)
    return snapshot


def _watch_plainly(simulation: Simulation) -> Snapshot:
    shown = -LINE_EVERY
    phase = ""
    for snapshot in simulation.run():
        if snapshot.seconds - shown >= LINE_EVERY or snapshot.phase != phase:
            shown, phase = snapshot.seconds, snapshot.phase
            click.echo(
                f"{snapshot.seconds:5.1f} s  {snapshot.phase}: "
                f"{snapshot.expected.deliveries:,} deliveries, "
                f"{snapshot.booked[0]:,} payments booked, "
                f"{snapshot.absorbed:,} duplicates absorbed, {snapshot.kills} workers killed"
            )
    return snapshot


def _render(snapshot: Snapshot, seconds: float) -> Group:
    head = Text(f"{snapshot.phase}  ", style="bold")
    bar = ProgressBar(total=seconds, completed=snapshot.seconds, width=40)
    return Group(head, bar, Text(), _table(snapshot))


def _table(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "expected", "naive", "oncebox"):
        table.add_column(title, justify="left" if not title else "right")
    expected = snapshot.expected
    rows = (
        ("payments booked", expected.payments, snapshot.naive[0], snapshot.booked[0]),
        ("sum of accounts", expected.cents, snapshot.naive[1], snapshot.booked[1]),
    )
    for name, true, naive, ours in rows:
        table.add_row(
            name, _money(true, name), _compared(naive, true, name), _compared(ours, true, name)
        )
    table.add_section()
    repeated = f"{expected.repeated:,} + {expected.doubled:,} double clicks"
    table.add_row("deliveries", f"{expected.deliveries:,}", "", "")
    table.add_row("repeated deliveries", repeated, "", f"{snapshot.absorbed:,} absorbed")
    table.add_row("workers killed", "", f"{snapshot.naive_kills}", f"{snapshot.kills}")
    table.add_row("dead letters", "", "lost", f"{snapshot.dead} ({snapshot.retried} retried)")
    return table


def _money(value: int, name: str) -> str:
    return f"{value / 100:,.2f}" if name.startswith("sum") else f"{value:,}"


def _compared(value: int, true: int, name: str) -> Text:
    difference = value - true
    text = _money(value, name)
    if difference:
        return Text(
            f"{text} ({'+' if difference > 0 else '-'}{_money(abs(difference), name)})", "red"
        )
    return Text(text, "green")


def _print_result(last: Snapshot) -> bool:
    """Print the books. Returns True if those of oncebox balance."""
    balanced = last.booked == (last.expected.payments, last.expected.cents)
    if not console.is_terminal:
        console.print(_table(last))
    console.print()
    if balanced:
        console.print(
            f"The books of oncebox balance: {last.kills} workers killed, "
            f"{last.absorbed:,} duplicates absorbed, {last.retried} dead letter retried.",
            style="bold green",
        )
    else:
        console.print("The books of oncebox do not balance.", style="bold red")
    return balanced


def _how_to_check(url: str | None, folder: Path, database: str | None) -> None:
    console.print("\nCheck it yourself" + (":" if url else ", with --keep:"))
    console.print("  SELECT count(*), count(DISTINCT order_number) FROM ledger;")
    console.print("  SELECT state, count(*) FROM oncebox_message GROUP BY state;")
    if url:
        console.print(f"  in {url if database else folder / 'oncebox.db'}", soft_wrap=True)
