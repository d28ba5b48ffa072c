"""Command `purge`: deletes finished messages that are older than the retention."""

from __future__ import annotations

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.output import json_option, print_json, progress_bar, text
from oncebox.cli.prompts import by_option, confirm, dry_run_option, yes_option
from oncebox.model.retention import PurgeLimit
from oncebox.operations.purge import Purged


@click.command()
@app_argument
@click.option(
    "--why",
    default="older than the retention",
    show_default=True,
    help="The reason, for the audit log.",
)
@by_option
@dry_run_option
@yes_option
@json_option
def purge(
    app: Reference, why: str, by: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete finished messages that are older than the retention.

    `oncebox run` does this every ten minutes. Messages that are pending, awaiting a sequence
    number, dead, quarantined or in a replay are kept. A new message that was produced before the
    purged ones is quarantined, because it may be a duplicate.
    """
    inbox = app.load()
    limit, count = called(inbox, inbox.purge.preview)
    for reason in limit.held_back_by:
        click.secho(f"some messages cannot be purged yet: {reason}", fg="yellow", err=True)
    if dry_run or not count:
        _print_preview(limit, count, dry_run=dry_run, as_json=as_json)
        return
    confirm(f"Purge up to {count:,} messages from before {text(limit.watermark)}?", yes=yes)
    with progress_bar("purge", count) as progress:
        purged: Purged = called(inbox, inbox.purge.run, why=why, by=by, progress=progress.set_done)
    if as_json:
        print_json(purged)
    else:
        click.echo(f"{purged.purged:,} messages purged")


def _print_preview(limit: PurgeLimit, count: int, *, dry_run: bool, as_json: bool) -> None:
    if as_json and dry_run:
        held_back_by = limit.held_back_by
        print_json(
            {"watermark": limit.watermark, "would_purge": count, "held_back_by": held_back_by}
        )
    elif as_json:
        print_json(Purged(limit.watermark, 0, limit.held_back_by))
    elif count:
        before = text(limit.watermark)
        click.echo(f"up to {count:,} messages from before {before}; unfinished ones are kept")
    else:
        click.echo("no messages are older than the retention")
