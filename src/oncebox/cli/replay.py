"""Command `replay`: runs finished messages again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import MISSING
from oncebox.cli.documents import print_json
from oncebox.cli.messages import print_examples
from oncebox.cli.options import action_options, given, message_filters
from oncebox.cli.output import (
    WARNING,
    ago,
    counted,
    note,
    print_line,
    print_table,
    printable,
    progress_bar,
)
from oncebox.cli.prompts import confirm, prompted_why
from oncebox.inbox import Inbox
from oncebox.model.filters import REPLAYABLE
from oncebox.model.replay import Replay
from oncebox.operations.replays import Preview


@click.command()
@app_argument
@click.argument("name", required=False)
@message_filters(REPLAYABLE, state="done")
@click.option("--pace", type=float, help="The most messages per second; changes a running replay.")
@click.option(
    "--cancel", is_flag=True, help="Cancel the messages of replay NAME that have not run."
)
@click.option("--no-wait", is_flag=True, help="Start it and exit, without showing its progress.")
@action_options
def replay(app: Reference, name: str | None, as_json: bool, **options: Any) -> None:
    """Run finished messages again, in their old order.

    \b
    oncebox replay APP                          list replays
    oncebox replay APP --type T --dry-run       count the matching messages
    oncebox replay APP NAME --type T --since 2026-07-14 --until 2026-07-15
    oncebox replay APP NAME                     show the progress
    oncebox replay APP NAME --pace 50           change the pace
    oncebox replay APP NAME --cancel            cancel what has not run

    The workers of `oncebox run` or `oncebox worker` run the messages. A replay continues if this
    command ends.
    """
    inbox = app.load()
    names = ("ids", "type", "key", "origin", "since", "until", "state")
    which = given({what: options[what] for what in names})
    if options["cancel"] and (which or options["pace"] is not None):
        raise click.UsageError("--cancel cancels the whole replay: leave out filters and --pace")
    if options["cancel"] or (options["pace"] is not None and not which):
        _change(inbox, name, options, as_json)
    elif which:
        _start(inbox, name, which, options, as_json)
    elif name is not None:
        _print(called(inbox, inbox.replays.get, name), as_json)
    else:
        _list(called(inbox, inbox.replays.find), as_json)


def _change(inbox: Inbox, name: str | None, options: dict[str, Any], as_json: bool) -> None:
    if name is None:
        raise click.UsageError("name the replay: oncebox replay APP NAME ...")
    if options["dry_run"]:
        raise click.UsageError("--dry-run is only for a new replay")
    audit = {"why": prompted_why(options["why"]), "by": options["by"]}
    if options["cancel"]:
        confirm(f"Cancel the messages of {name!r} that have not run?", yes=options["yes"])
        _print(called(inbox, inbox.replays.cancel, name, **audit), as_json)
    else:
        _print(called(inbox, inbox.replays.set_pace, name, options["pace"], **audit), as_json)


def _start(
    inbox: Inbox,
    name: str | None,
    which: dict[str, Any],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    preview: Preview = called(inbox, inbox.replays.preview, **which)
    if options["dry_run"]:
        _print_preview(inbox, preview, which, as_json=as_json, dry_run=True)
        return
    _print_preview(inbox, preview, which, as_json=as_json)
    if not preview.count:
        if as_json:
            print_json(_counts(preview, dry_run=False))
        note("no messages match")
        raise SystemExit(MISSING)
    if name is None:
        raise click.UsageError("name the replay: oncebox replay APP NAME ...")
    why = prompted_why(options["why"])
    confirm(f"Run {counted(preview.count, 'message')} again?", yes=options["yes"])
    begun: Replay = called(
        inbox, inbox.replays.start, name, why=why, by=options["by"], pace=options["pace"], **which
    )
    if options["no_wait"]:
        _print(begun, as_json)
    else:
        _show_progress(inbox, begun, as_json)


def _print_preview(
    inbox: Inbox, preview: Preview, which: dict[str, Any], *, as_json: bool, dry_run: bool = False
) -> None:
    if as_json and dry_run:
        print_json(_counts(preview, dry_run=True))
    if as_json:
        return
    print_examples(inbox, preview.count, {"state": "done", **which})
    print_line(f"{counted(preview.count, 'message')} would run again")
    if preview.without_payload:
        print_line(f"{preview.without_payload:,} more match but have no payload")
    if preview.in_other_states:
        print_line(f"{preview.in_other_states:,} more match but are in another state")


def _counts(preview: Preview, *, dry_run: bool) -> dict[str, Any]:
    return {
        "action": "replay",
        "dry_run": dry_run,
        "matching": preview.count,
        "without_payload": preview.without_payload,
        "in_other_states": preview.in_other_states,
    }


def _show_progress(inbox: Inbox, replay: Replay, as_json: bool) -> None:
    try:
        if all(worker.is_crashed for worker in called(inbox, inbox.status).workers):
            hint = "no worker is running: start `oncebox run` or `oncebox worker`"
            note(hint, style=WARNING)
        with progress_bar("replay", replay.total) as progress:
            while not replay.is_over:
                time.sleep(0.5)
                replay = called(inbox, inbox.replays.get, replay.name)
                progress.set_done(replay.stored + replay.skipped - replay.waiting)
    except KeyboardInterrupt:
        command = f"oncebox replay APP {replay.name}"
        note(f"the replay continues; show it: {command}, stop it: {command} --cancel")
    _print(replay, as_json)


def _print(replay: Replay, as_json: bool) -> None:
    if as_json:
        print_json(replay)
        return
    _list([replay], as_json=False)
    print_line(printable(f"{replay.wanted}; by {replay.by}: {replay.why}"))


def _list(replays: Sequence[Replay], as_json: bool) -> None:
    if as_json:
        print_json(list(replays))
        return
    print_table(
        (
            *("name", "state", "done #", "of #", "waiting #", "dead #", "discarded #"),
            *("skipped #", "cancelled #", "started"),
        ),
        [
            (
                *(r.name, r.progress, r.done, r.total, r.waiting, r.dead, r.discarded),
                *(r.skipped, r.cancelled, ago(r.began_at)),
            )
            for r in replays
        ],
        empty="no replays",
    )
