"""Command `archive`: lists, checks and restores archived messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import FAILURE, MISSING
from oncebox.cli.documents import print_json
from oncebox.cli.options import action_options, since_option, until_option
from oncebox.cli.output import ATTENTION, counted, note, print_line, print_table, progress_bar
from oncebox.cli.parameters import Span
from oncebox.cli.prompts import confirm, prompted_why
from oncebox.inbox import Inbox
from oncebox.operations.archive.format import Manifest
from oncebox.operations.archive.restore import A_DAY, Checked, Restored


@click.command()
@app_argument
@click.option(
    "--at", "place", metavar="PLACE", help="The archive; default: the one of the retention."
)
@since_option()
@until_option
@click.option("--check", is_flag=True, help="Read every file and compare it to its manifest.")
@click.option("--restore", is_flag=True, help="Restore the messages of these files.")
@click.option(
    "--keep",
    type=Span(),
    default=A_DAY,
    show_default="1d",
    help="How long nothing is purged after a restore.",
)
@action_options
def archive(
    app: Reference,
    place: str | None,
    since: datetime | None,
    until: datetime | None,
    check: bool,
    restore: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """List, check or restore archived messages.

    With retention=Retention(days=..., archive="...") messages are archived before they are purged.
    Only files that match their manifest are restored.
    """
    if check and restore:
        raise click.UsageError("--check or --restore, not both: a restore checks its files")
    if options["dry_run"] and not restore:
        raise click.UsageError("--dry-run needs --restore: without it, nothing is changed")
    if check and (since or until):
        raise click.UsageError("--check reads every file: leave out --since and --until")
    inbox = app.load()
    if check:
        _check(inbox, place, as_json)
        return
    times = {"place": place, "since": since, "until": until}
    found: list[Manifest] = called(inbox, inbox.archives.find, **times)
    if restore:
        _restore(inbox, found, times, options, as_json)
    elif as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: list[Manifest]) -> None:
    print_table(
        ("received from", "to", "messages #", "bytes #", "file"),
        [(m.first_received_at, m.last_received_at, m.count, m.size, m.file) for m in found],
        empty="no archived messages",
    )


def _check(inbox: Inbox, place: str | None, as_json: bool) -> None:
    with progress_bar("check", None) as progress:
        checked: Checked = called(
            inbox, inbox.archives.check, place=place, progress=progress.set_done
        )
    if as_json:
        print_json(checked)
    else:
        _print_checked(checked)
    if checked.damaged:
        raise SystemExit(FAILURE)
    if not checked.files:
        raise SystemExit(MISSING)


def _print_checked(checked: Checked) -> None:
    for sentence in checked.damaged:
        print_line(sentence, style=ATTENTION)
    for name in checked.unfinished:
        print_line(f"{name} is incomplete: its writer crashed or is still writing")
    intact = checked.files - len(checked.damaged)
    found = f"{intact:,} of {checked.files:,} files are intact"
    print_line(found if checked.files else "no archived messages")


def _restore(
    inbox: Inbox,
    found: list[Manifest],
    times: dict[str, Any],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    if not as_json:
        _print(found)
    if not found:
        note("no archived messages match")
        raise SystemExit(MISSING)
    count = sum(manifest.count for manifest in found)
    if options["dry_run"]:
        if as_json:
            print_json({"action": "restore", "dry_run": True, "matching": count})
        return
    why = prompted_why(options["why"])
    confirm(f"Restore up to {counted(count, 'message')}?", yes=options["yes"])
    audit = {"why": why, "by": options["by"], "keep": options["keep"]}
    with progress_bar("restore", count) as progress:
        restored: Restored = called(
            inbox, inbox.archives.restore, progress=progress.set_done, **times, **audit
        )
    if as_json:
        done = {"done": restored.messages, "left": 0, "known": restored.known}
        print_json({"action": "restore", "dry_run": False, "matching": count, **done})
    else:
        known = f", {restored.known:,} were not purged" if restored.known else ""
        print_line(f"restored {counted(restored.messages, 'message')}{known}")
