"""The command line. Data goes to stdout, progress and errors go to stderr.

A command is imported when it is used. `oncebox --help` imports none of them.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

import oncebox
from oncebox.cli.commands import Commands

__all__ = ["main"]

SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Run": {
        "run": ("run:run", "Consume a source and run stored messages."),
        "worker": ("worker:worker", "Run stored messages as they become due, until stopped."),
        "drain": ("worker:drain", "Run the stored messages that are due, then exit."),
    },
    "Look": {
        "status": ("status:status", "Show the state of an inbox and its workers."),
        "list": ("messages:list_messages", "List messages, the newest last."),
        "tail": ("messages:tail", "Print the newest messages, one per line."),
        "show": ("show:show", "Show a message with its payload, attempts and audit entries."),
        "dead-letters": (
            "dead_letters:dead_letters",
            "Show dead letters and quarantined messages.",
        ),
    },
    "Act": {
        "retry": (
            "dead_letters:retry",
            "Run dead letters again, and release quarantined messages.",
        ),
        "discard": (
            "dead_letters:discard",
            "Remove dead letters permanently, and unblock their keys.",
        ),
        "replay": ("replay:replay", "Run finished messages again, in their old order."),
        "gaps": ("gaps:gaps", "List or skip missing sequence numbers."),
        "purge": ("purge:purge", "Delete finished messages that are older than the retention."),
        "erase": ("erase:erase", "Delete the content of messages permanently."),
        "archive": ("archive:archive", "List, check or restore archived messages."),
    },
    "Set up": {
        "migrate": ("schema:migrate", "Create or update the tables."),
        "sql": ("schema:sql", "Print every statement that `migrate` executes, for review."),
        "demo": ("demo.command:demo", "Process payments while kill -9 hits the processes."),
    },
}
"""The commands by task. Each has its module:function, and the first sentence of its help."""

HIDDEN = {"worker-process": "worker_process:worker_process"}


class Imported(UserDict[str, Any]):
    """Commands by name. A command that is still module:function is imported when it is read."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(place := self.data[name], str):
            module, _, function = place.partition(":")
            self.data[name] = getattr(import_module(f"oncebox.cli.{module}"), function)
        return self.data[name]


class LazyCommands(Commands):
    """The commands of oncebox, imported when they are used."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by task."""
        names = [name for section in SECTIONS.values() for name in section]
        limit = formatter.width - 6 - max(map(len, names))
        for title, section in SECTIONS.items():
            commands = [click.Command(name, help=text) for name, (_, text) in section.items()]
            with formatter.section(title):
                rows = [(str(c.name), c.get_short_help_str(limit)) for c in commands]
                formatter.write_dl(rows, col_max=30)


EXIT_CODES = """\b
Exit codes: 0 success, 1 failure, 2 wrong usage or configuration,
3 nothing matches, 4 unhealthy (status --check), 5 some messages were left.
"""

PLACES = {name: place for s in SECTIONS.values() for name, (place, _) in s.items()} | HIDDEN


@click.group(
    cls=LazyCommands,
    commands=Imported(PLACES),
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.version_option(oncebox.__version__, prog_name="oncebox")
def main() -> None:
    """The transactional inbox: the work of each message happens once.

    APP is your inbox as module:attribute, such as billing:inbox. Set it with the argument, with
    ONCEBOX_APP, or with `app` in the table [tool.oncebox] of pyproject.toml. That table also sets
    options by their long names.
    """
