"""Command `purge`: deletes finished messages that are older than the retention."""

from __future__ import annotations

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.documents import print_json
from oncebox.cli.messages import print_examples
from oncebox.cli.options import action_options
from oncebox.cli.output import WARNING, counted, note, print_line, progress_bar, text
from oncebox.cli.prompts import confirm, prompted_why
from oncebox.model.filters import REPLAYABLE
from oncebox.model.retention import PurgeLimit
from oncebox.operations.purge import Purged


@click.command()
@app_argument
@action_options
def purge(
    app: Reference, why: str | None, by: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete finished messages that are older than the retention.

    `oncebox run` and `oncebox worker` do this every ten minutes. Messages that are pending,
    awaiting a sequence number, dead, quarantined or in a replay are kept. A new message that was
    produced before the purged ones is quarantined, because it may be a duplicate.
    """
    inbox = app.load()
    limit, count = called(inbox, inbox.purge.preview)
    for reason in limit.held_back_by:
        note(f"some messages cannot be purged yet: {reason}", style=WARNING)
    if as_json and (dry_run or not count):
        _print_result(limit, count, dry_run=dry_run)
    if not as_json:
        if not yes:
            old = {"state": REPLAYABLE, "until": limit.watermark, "after": -1}
            print_examples(inbox, count, old)
        _print_preview(limit, count)
    if dry_run or not count:
        return
    why = prompted_why(why)
    confirm(f"Purge up to {counted(count, 'message')}?", yes=yes)
    with progress_bar("purge", count) as progress:
        purged: Purged = called(inbox, inbox.purge.run, why=why, by=by, progress=progress.set_done)
    if as_json:
        limit = PurgeLimit(purged.watermark, purged.held_back_by)
        _print_result(limit, count, dry_run=False, done=purged.purged)
    else:
        print_line(f"purged {counted(purged.purged, 'message')}")


def _print_preview(limit: PurgeLimit, count: int) -> None:
    if not count:
        nothing = "no messages are older than the retention, counted from the last arrival"
        print_line("no messages can be purged now" if limit.held_back_by else nothing)
        return
    before = text(limit.watermark)
    print_line(f"up to {counted(count, 'message')} from before {before}; unfinished ones are kept")


def _print_result(limit: PurgeLimit, count: int, *, dry_run: bool, done: int = 0) -> None:
    result = {} if dry_run else {"done": done, "left": 0}
    about = {"watermark": limit.watermark, "held_back_by": limit.held_back_by}
    print_json({"action": "purge", "dry_run": dry_run, "matching": count, **result, **about})
