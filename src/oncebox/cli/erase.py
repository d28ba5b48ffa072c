"""Command `erase`: deletes the content of messages."""

from __future__ import annotations

from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import PARTIAL
from oncebox.cli.options import message_filters
from oncebox.cli.output import json_option, print_json, progress_bar
from oncebox.cli.prompts import (
    by_option,
    confirm,
    dry_run_option,
    prompted_why,
    why_option,
    yes_option,
)
from oncebox.operations.erase import Erased


@click.command()
@app_argument
@message_filters
@why_option
@by_option
@dry_run_option
@yes_option
@json_option
def erase(
    app: Reference,
    why: str | None,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **filter: Any,
) -> None:
    """Delete the content of messages permanently.

    Payloads, headers and error texts are deleted. The ids stay, so that duplicates are still
    recognised. Unfinished, dead and quarantined messages are not erased: run or discard them first.
    Archives are not changed.
    """
    inbox = app.load()
    # An empty value is a filter: without it `--type order --key "$UNSET"` would erase all orders.
    which = {name: value for name, value in filter.items() if value not in (None, ())}
    if not which:
        raise click.UsageError("give at least one filter: --key, --id, ...")
    count = called(inbox, inbox.messages.count_erasable, **which)
    if dry_run:
        print_json({"would_erase": count}) if as_json else click.echo(_matching(count))
        return
    if not as_json:
        click.echo(_matching(count), err=True)
    why = why or prompted_why()
    confirm("Erase their content permanently?", yes=yes)
    with progress_bar("erase", count) as progress:
        erased: Erased = called(
            inbox, inbox.messages.erase, why=why, by=by, progress=progress.set_done, **which
        )
    _print(erased, as_json)
    if erased.left:
        raise SystemExit(PARTIAL)


def _matching(count: int) -> str:
    return f"{count:,} messages match and have content to erase"


def _print(erased: Erased, as_json: bool) -> None:
    if as_json:
        print_json(erased)
        return
    left = f", {erased.left:,} left: unfinished, quarantined, in a replay or locked"
    click.echo(f"erase: {erased.done:,} done{left if erased.left else ''}")
