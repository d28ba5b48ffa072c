"""Questions to the operator: the reason for an action, and its confirmation."""

from __future__ import annotations

import sys

import click

NO_TERMINAL = "this is not a terminal: pass --yes"


def _is_terminal() -> bool:
    """False also if standard input is closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def prompted_why(why: str | None) -> str:
    """The reason for an action: from --why, else from the terminal."""
    if why is not None and why.strip():
        return why
    if why is not None or not _is_terminal():
        raise click.UsageError('--why "..." is required: it is recorded in the audit log')
    asked: str = click.prompt("Why (for the audit log)", err=True)
    return asked


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless `yes`; end the command if the answer is no."""
    if yes:
        return
    if sys.stdin is None:
        raise click.UsageError(NO_TERMINAL)
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if _is_terminal():
            raise
        click.echo(err=True)
        raise click.UsageError(NO_TERMINAL) from None
    if not agreed:
        raise click.Abort
