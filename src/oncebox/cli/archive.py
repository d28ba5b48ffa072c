"""Command `archive`: lists, checks and restores archived messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import FAILURE, MISSING
from oncebox.cli.output import json_option, print_json, print_table, progress_bar
from oncebox.cli.prompts import (
    Moment,
    Span,
    by_option,
    confirm,
    prompted_why,
    why_option,
    yes_option,
)
from oncebox.inbox import Inbox
from oncebox.operations.archive.format import Manifest
from oncebox.operations.archive.restore import A_DAY, Checked, Restored


@click.command()
@app_argument
@click.option(
    "--at", "place", metavar="PLACE", help="The archive; default: the one of the retention."
)
@click.option("--since", type=Moment(), help="Files with messages received since.")
@click.option("--until", type=Moment(), help="Files with messages received before.")
@click.option("--check", is_flag=True, help="Read every file and compare it to its manifest.")
@click.option("--restore", is_flag=True, help="Restore the messages of these files.")
@click.option(
    "--keep",
    type=Span(),
    default=A_DAY,
    show_default="1d",
    help="How long nothing is purged after a restore.",
)
@why_option
@by_option
@yes_option
@json_option
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
        click.secho(sentence, fg="red")
    for name in checked.unfinished:
        click.echo(f"{name} is incomplete: its writer crashed or is still writing")
    intact = checked.files - len(checked.damaged)
    found = f"{intact:,} of {checked.files:,} files are intact"
    click.echo(found if checked.files else "no archived messages")


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
        raise SystemExit(MISSING)
    count = sum(manifest.count for manifest in found)
    why = options["why"] or prompted_why()
    confirm(f"Restore up to {count:,} messages?", yes=options["yes"])
    audit = {"why": why, "by": options["by"], "keep": options["keep"]}
    with progress_bar("restore", count) as progress:
        restored: Restored = called(
            inbox, inbox.archives.restore, progress=progress.set_done, **times, **audit
        )
    if as_json:
        print_json(restored)
    else:
        known = f", {restored.known:,} were not purged" if restored.known else ""
        click.echo(f"{restored.messages:,} messages restored{known}")
