"""archive, erase: what was archived, back again; and payloads for ever away."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from oncebox.archive import Manifest
from oncebox.archives import A_DAY, Checked, Restored
from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.asking import (
    Moment,
    Span,
    asked_why,
    by_option,
    dry_run_option,
    why_option,
    yes_option,
)
from oncebox.cli.group import FAILURE, MISSING, PARTIAL
from oncebox.cli.output import json_option, print_json, print_table, progress_bar
from oncebox.housekeeping import Erased
from oncebox.inbox import Inbox


@click.command()
@app_argument
@click.option("--at", "place", metavar="PLACE", help="The archive; default: that of the retention.")
@click.option("--since", type=Moment(), help="Files with messages received since.")
@click.option("--until", type=Moment(), help="Files with messages received before.")
@click.option("--check", is_flag=True, help="Read every file, and compare it to its manifest.")
@click.option("--restore", is_flag=True, help="Bring the messages of these files back.")
@click.option(
    "--keep",
    type=Span(),
    default=A_DAY,
    show_default="1d",
    help="How long nothing is forgotten after a restoration.",
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
    """Show what was archived; check it; bring it back.

    Messages are archived before they are forgotten where the inbox has
    retention=Retention(days=..., archive="..."). A file is only restored if it is sound.
    """
    if check and restore:
        raise click.UsageError("--check or --restore, not both: what is restored is checked")
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
        empty="nothing was archived",
    )


def _check(inbox: Inbox, place: str | None, as_json: bool) -> None:
    with progress_bar("check", None) as progress:
        checked: Checked = called(inbox, inbox.archives.check, place=place, progress=progress.seen)
    if as_json:
        print_json(checked)
    else:
        for sentence in checked.damaged:
            click.secho(sentence, fg="red")
        for name in checked.unfinished:
            click.echo(f"{name} is not finished: its writer died, or is still at it")
        sound = checked.files - len(checked.damaged)
        found = f"{sound:,} of {checked.files:,} files are sound"
        click.echo(found if checked.files else "nothing was archived")
    if checked.damaged:
        raise SystemExit(FAILURE)
    if not checked.files:
        raise SystemExit(MISSING)


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
    why = options["why"] or asked_why()
    if not options["yes"]:
        question = f"Bring up to {count:,} messages back?"
        click.confirm(question, abort=True, err=True)
    deed = {"why": why, "by": options["by"], "keep": options["keep"]}
    with progress_bar("restore", count) as progress:
        restored: Restored = called(
            inbox, inbox.archives.restore, progress=progress.seen, **times, **deed
        )
    if as_json:
        print_json(restored)
    else:
        known = f"; {restored.known:,} were there" if restored.known else ""
        click.echo(f"{restored.messages:,} messages came back{known}")


@click.command()
@app_argument
@click.option("--id", "ids", multiple=True, metavar="ID", help="This message; may be repeated.")
@click.option("--key", help="Of this key.")
@click.option("--type", metavar="TYPE", help="Of this type.")
@click.option("--origin", help="Of this origin.")
@click.option("--since", type=Moment(), help="Received since: 2026-07-14T09:30, or 2h ago as 2h.")
@click.option("--until", type=Moment(), help="Received before.")
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
    """Erase the payloads, headers and error texts of messages, for ever.

    Their ids stay, so that duplicates are still known. What is unfinished, dead or quarantined is
    left as it is: run or discard it first. Archives are not touched.
    """
    inbox = app.load()
    which = {name: value for name, value in filter.items() if value}
    if not which:
        raise click.UsageError("say which messages: --key, --id, ...")
    count = called(inbox, inbox.housekeeping.count_erasable, **which)
    if dry_run:
        print_json({"would_erase": count}) if as_json else click.echo(_matching(count))
        return
    if not as_json:
        click.echo(_matching(count), err=True)
    why = why or asked_why()
    if not yes:
        click.confirm("Erase their payloads for ever?", abort=True, err=True)
    with progress_bar("erase", count) as progress:
        erased: Erased = called(
            inbox, inbox.housekeeping.erase, why=why, by=by, progress=progress.seen, **which
        )
    if as_json:
        print_json(erased)
    else:
        left = f", {erased.left:,} left: unfinished, quarantined, in a replay or busy"
        left *= bool(erased.left)
        click.echo(f"erase: {erased.done:,} done{left}")
    if erased.left:
        raise SystemExit(PARTIAL)


def _matching(count: int) -> str:
    return f"{count:,} messages match, and have something to erase"
