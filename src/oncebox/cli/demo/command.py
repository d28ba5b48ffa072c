"""Command `demo`: the same payments and the same kill -9 for oncebox and for a naive consumer."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import click

from oncebox.cli.commands import FAILURE
from oncebox.cli.demo.books import CHECK, Books, books_at
from oncebox.cli.demo.failures import explained
from oncebox.cli.demo.interrupts import Interrupts
from oncebox.cli.demo.simulation import Simulation
from oncebox.cli.demo.state import State
from oncebox.cli.demo.view import print_verdict, watch
from oncebox.cli.output import console
from oncebox.errors import ConfigurationError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells report it."""


@click.command()
@click.option(
    "--database", metavar="URL", help="postgresql://...; default: SQLite, in a new folder."
)
@click.option(
    "--seconds",
    type=click.FloatRange(5),
    default=30,
    show_default=True,
    help="How long the demo sends payments and kills processes.",
)
@click.option(
    "--seed", type=int, default=7, show_default=True, help="Of the payments and the kills."
)
@click.option("--keep", is_flag=True, help="Keep the databases, and print where they are.")
def demo(database: str | None, seconds: float, seed: int, keep: bool) -> None:
    """Process payments while kill -9 hits the processes.

    The same payments go through oncebox and through a naive consumer, and both are killed at the
    same moments. Needs no server. The exit code is 1 if the books of oncebox do not balance, and
    130 after Ctrl-C.
    """
    if database is not None and not database.startswith(("postgresql://", "postgres://")):
        raise ConfigurationError("the demo runs on SQLite, or with --database postgresql://...")
    with Interrupts() as interrupts, explained(database), _folder(keep) as folder:
        url = database or f"sqlite:///{folder}"
        with _opened(url, "oncebox", keep) as ours, _opened(url, "naive", keep) as theirs:
            simulation = Simulation(folder, ours, theirs, interrupts, seconds=seconds, seed=seed)
            with closing(simulation.run()) as states:
                watch(states, console)
        print_verdict(simulation.state, console)
        if keep or not simulation.state.is_interrupted:
            _print_check(ours, theirs, folder, keep)
    raise SystemExit(_exit_code(simulation.state))


def _exit_code(state: State) -> int:
    if state.is_interrupted:
        return INTERRUPTED
    return 0 if state.is_balanced else FAILURE


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    """A new folder for the stream, the logs and the databases of SQLite."""
    path = Path(tempfile.mkdtemp(prefix="oncebox-demo-"))
    try:
        yield path
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _opened(url: str, name: str, keep: bool) -> Iterator[Books]:
    """The books of one side; they are dropped at the end."""
    books = books_at(url, name)
    try:
        yield books
    finally:
        with suppress(Exception):  # another error is being reported
            if not keep:
                books.drop()
            books.close()


def _print_check(ours: Books, theirs: Books, folder: Path, keep: bool) -> None:
    """Print the SQL that checks the result, where to run it, and the next command."""
    lines = ["", "The numbers come from this query:", "", CHECK, ""]
    if keep:
        lines += ["Run it yourself. The databases are kept:"]
        lines += [f"  {books.open_with}" for books in (ours, theirs)]
        lines += ["", f"The stream and the logs of the processes are in {folder}", ""]
    lines += [f"Next: {next_command(ours, keep)}"]
    console.print("\n".join(lines), soft_wrap=True, markup=False)


def next_command(ours: Books, keep: bool) -> str:
    """The command that looks into the kept inbox, or keeps it."""
    if not keep:
        return f"{_command()} demo --keep"
    environment = f"ONCEBOX_DEMO_DATABASE={shlex.quote(ours.url)}"
    return f"{environment} {_command()} status oncebox.cli.demo.app:inbox"


def _command() -> str:
    """The command `oncebox` as it can be typed in this shell."""
    if shutil.which("oncebox"):
        return "oncebox"
    program = Path(sys.argv[0])
    if program.name != "oncebox":  # python -m oncebox, or a program that calls main()
        return f"{shlex.quote(sys.executable)} -m oncebox"
    with suppress(ValueError):
        program = program.absolute().relative_to(Path.cwd())
    return shlex.quote(str(program))
