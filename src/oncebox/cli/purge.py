"""purge: forgetting what is old."""

from __future__ import annotations

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.asking import by_option, dry_run_option, yes_option
from oncebox.cli.output import json_option, print_json, progress_bar, text
from oncebox.housekeeping import Purged


@click.command()
@app_argument
@click.option("--why", default="it was time", help="Written down with the deed.")
@by_option
@dry_run_option
@yes_option
@json_option
def purge(
    app: Reference, why: str, by: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Forget messages that are older than the retention, and finished.

    `oncebox run` does this by itself every ten minutes. What is pending, early, dead, quarantined
    or to be replayed stays. What arrives afterwards, but came into being before, is quarantined: it
    may be a duplicate.
    """
    inbox = app.load()
    horizon, count = called(inbox, inbox.housekeeping.horizon)
    for why in horizon.held_by:
        click.secho(f"not everything is forgotten yet: {why}", fg="yellow", err=True)
    if dry_run or not count:
        if as_json and dry_run:
            print_json({"mark": horizon.mark, "would_forget": count, "held_by": horizon.held_by})
        elif as_json:
            print_json(Purged(horizon.mark, 0, horizon.held_by))
        else:
            since = f" from before {text(horizon.mark)}" if horizon.mark else " old enough"
            click.echo(f"{count:,} messages are{since}, finished or not")
        return
    if not yes:
        question = f"Forget up to {count:,} messages from before {text(horizon.mark)}?"
        click.confirm(question, abort=True, err=True)
    with progress_bar("purge", count) as progress:
        purged: Purged = called(
            inbox, inbox.housekeeping.purge, why=why, by=by, progress=progress.seen
        )
    if as_json:
        print_json(purged)
    else:
        click.echo(f"{purged.forgotten:,} messages were forgotten")
