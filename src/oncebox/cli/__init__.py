"""The command line: data to stdout, progress and complaints to stderr."""

from __future__ import annotations

import click

import oncebox
from oncebox.cli.archive import archive, erase
from oncebox.cli.dead import dead, discard, retry
from oncebox.cli.demo import demo
from oncebox.cli.gaps import gaps
from oncebox.cli.group import Commands
from oncebox.cli.look import list_messages, show, status, tail
from oncebox.cli.purge import purge
from oncebox.cli.replay import replay
from oncebox.cli.run import drain, run, worker
from oncebox.cli.schema import migrate, sql

__all__ = ["main"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(oncebox.__version__, prog_name="oncebox")
def main() -> None:
    """oncebox makes every message take effect once.

    APP names your inbox as module:attribute, such as billing:inbox. It may also be given as
    ONCEBOX_APP, or as `app` in the table [tool.oncebox] of pyproject.toml. Options may be given
    there too, under their names.
    """


for command in (
    run,
    worker,
    drain,
    migrate,
    sql,
    status,
    list_messages,
    show,
    tail,
    dead,
    retry,
    discard,
    replay,
    gaps,
    purge,
    archive,
    erase,
    demo,
):
    main.add_command(command)
