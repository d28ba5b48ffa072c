"""Questions to the operator: the reason for an action, and its confirmation."""

from __future__ import annotations

import sys

import click


def prompted_why(why: str | None) -> str:
    """The reason for an action: from --why, else from the terminal."""
    if why is not None and why.strip():
        return why
    if why is not None or not sys.stdin.isatty():
        raise click.UsageError('--why "..." is required: it is recorded in the audit log')
    asked: str = click.prompt("Why (for the audit log)", err=True)
    return asked


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless `yes`; end the command if the answer is no."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise click.UsageError("this is not a terminal: pass --yes") from None
    if not agreed:
        raise click.Abort
