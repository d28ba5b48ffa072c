"""The command line. Data goes to stdout, progress and errors go to stderr."""

from __future__ import annotations

import click

import oncebox
from oncebox.cli.archive import archive
from oncebox.cli.commands import Commands
from oncebox.cli.dead_letters import dead_letters, discard, retry
from oncebox.cli.demo.command import demo
from oncebox.cli.erase import erase
from oncebox.cli.gaps import gaps
from oncebox.cli.messages import list_messages, tail
from oncebox.cli.purge import purge
from oncebox.cli.replay import replay
from oncebox.cli.run import run
from oncebox.cli.schema import migrate, sql
from oncebox.cli.show import show
from oncebox.cli.status import status
from oncebox.cli.worker import drain, worker
from oncebox.cli.worker_process import worker_process

__all__ = ["main"]


EXIT_CODES = """\b
Exit codes: 0 success, 1 failure, 2 wrong usage or configuration,
3 nothing matches, 4 unhealthy (status --check), 5 some messages were left.
"""


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES
)
@click.version_option(oncebox.__version__, prog_name="oncebox")
def main() -> None:
    """The transactional inbox: the work of each message happens once.

    APP is your inbox as module:attribute, such as billing:inbox. Set it with the argument, with
    ONCEBOX_APP, or with `app` in the table [tool.oncebox] of pyproject.toml. That table also sets
    options by their long names.
    """


for command in (
    run,
    worker,
    drain,
    worker_process,
    migrate,
    sql,
    status,
    list_messages,
    show,
    tail,
    dead_letters,
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
