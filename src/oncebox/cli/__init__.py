"""The command line. Data goes to stdout, progress and errors go to stderr.

A command is imported when it is used. `oncebox --help` imports none of them.
"""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Any

import click

import oncebox
from oncebox.cli.commands import Commands

__all__ = ["main"]

COMMANDS = {
    "run": "run:run",
    "worker": "worker:worker",
    "drain": "worker:drain",
    "worker-process": "worker_process:worker_process",
    "migrate": "schema:migrate",
    "sql": "schema:sql",
    "status": "status:status",
    "list": "messages:list_messages",
    "show": "messages:show",
    "tail": "messages:tail",
    "dead-letters": "dead_letters:dead_letters",
    "retry": "dead_letters:retry",
    "discard": "dead_letters:discard",
    "replay": "replay:replay",
    "gaps": "gaps:gaps",
    "purge": "purge:purge",
    "archive": "archive:archive",
    "erase": "erase:erase",
    "demo": "demo.command:demo",
}
"""Where each command is: module:function."""

SUMMARIES = {
    "archive": "List, check or restore archived messages.",
    "dead-letters": "Show dead letters and quarantined messages, grouped by error.",
    "demo": "Process payments while workers are killed.",
    "discard": "Remove dead letters permanently, and unblock their keys.",
    "drain": "Run the stored messages that are due, then exit.",
    "erase": "Delete the content of messages permanently.",
    "gaps": "List or skip missing sequence numbers.",
    "list": "List messages, the newest last.",
    "migrate": "Create or update the tables.",
    "purge": "Delete finished messages that are older than the retention.",
    "replay": "Run finished messages again, in their old order.",
    "retry": "Run dead letters again, and release quarantined messages.",
    "run": "Consume a source and run stored messages.",
    "show": "Show a message with its payload, attempts and audit entries.",
    "sql": "Print every statement that `migrate` executes, for review.",
    "status": "Show the state of an inbox and its workers.",
    "tail": "Print the newest messages, one per line.",
    "worker": "Run stored messages as they become due, until a signal stops it.",
}
"""The first sentence of each command's help, for `oncebox --help`. Other commands are hidden."""


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
        limit = formatter.width - 6 - max(map(len, SUMMARIES))
        commands = [click.Command(name, help=text) for name, text in SUMMARIES.items()]
        with formatter.section("Commands"):
            formatter.write_dl([(str(c.name), c.get_short_help_str(limit)) for c in commands])


@click.group(
    cls=LazyCommands,
    commands=Imported(COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(oncebox.__version__, prog_name="oncebox")
def main() -> None:
    """The transactional inbox: the work of each message happens once.

    APP is your inbox as module:attribute, such as billing:inbox. Set it with the argument, with
    ONCEBOX_APP, or with `app` in the table [tool.oncebox] of pyproject.toml. That table also sets
    options by their long names.
    """
