"""Command `replay`: runs finished messages again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import MISSING
from oncebox.cli.options import message_filters
from oncebox.cli.output import (
    age,
    console,
    json_option,
    print_json,
    print_table,
    progress_bar,
    text,
)
from oncebox.cli.prompts import (
    by_option,
    confirm,
    dry_run_option,
    prompted_why,
    why_option,
    yes_option,
)
from oncebox.inbox import Inbox
from oncebox.model.filters import REPLAYABLE
from oncebox.model.replay import Replay
from oncebox.operations.replays import Preview


@click.command()
@app_argument
@click.argument("name", required=False)
@message_filters
@click.option(
    "--state", type=click.Choice(REPLAYABLE), help="Messages in this state; default: done."
)
@click.option("--pace", type=float, help="The most messages per second; changes a running replay.")
@click.option(
    "--cancel", is_flag=True, help="Cancel the messages of replay NAME that have not run."
)
@click.option("--no-wait", is_flag=True, help="Start it and exit, without showing its progress.")
@why_option
@by_option
@dry_run_option
@yes_option
@json_option
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
    names = ("type", "key", "origin", "since", "until", "state")
    which = {what: options[what] for what in names if options[what] is not None}
    if options["ids"]:
        which["ids"] = options["ids"]
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
    audit = {"why": options["why"] or prompted_why(), "by": options["by"]}
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
        print_json(preview) if as_json else _print_preview(preview)
        return
    if not as_json:
        _print_preview(preview)
    if not preview.count:
        raise SystemExit(MISSING)
    if name is None:
        raise click.UsageError("name the replay: oncebox replay APP NAME ...")
    why = options["why"] or prompted_why()
    confirm(f"Run {preview.count:,} messages again?", yes=options["yes"])
    begun: Replay = called(
        inbox, inbox.replays.start, name, why=why, by=options["by"], pace=options["pace"], **which
    )
    if options["no_wait"]:
        _print(begun, as_json)
    else:
        _show_progress(inbox, begun, as_json)


def _print_preview(preview: Preview) -> None:
    click.echo(f"{preview.count:,} messages would run again")
    if preview.without_payload:
        click.echo(f"{preview.without_payload:,} more match but have no payload")
    if preview.in_other_states:
        click.echo(f"{preview.in_other_states:,} more match but are in another state")


def _show_progress(inbox: Inbox, replay: Replay, as_json: bool) -> None:
    try:
        if all(worker.is_crashed for worker in called(inbox, inbox.status).workers):
            hint = "no worker is running: start `oncebox run` or `oncebox worker`"
            click.secho(hint, fg="yellow", err=True)
        with progress_bar("replay", replay.total) as progress:
            while not replay.is_over:
                time.sleep(0.5)
                replay = called(inbox, inbox.replays.get, replay.name)
                progress.set_done(replay.stored + replay.skipped - replay.waiting)
    except KeyboardInterrupt:
        command = f"oncebox replay APP {replay.name}"
        click.echo(
            f"the replay continues; show it: {command}, stop it: {command} --cancel", err=True
        )
    _print(replay, as_json)


def _print(replay: Replay, as_json: bool) -> None:
    if as_json:
        print_json(_described(replay))
        return
    _list([replay], as_json=False)
    console.print(text(f"{replay.wanted}; by {replay.by}: {replay.why}"))


def _list(replays: Sequence[Replay], as_json: bool) -> None:
    if as_json:
        print_json([_described(found) for found in replays])
        return
    print_table(
        (
            *("name", "state", "done #", "of #", "waiting #", "dead #", "discarded #"),
            *("skipped #", "cancelled #", "started"),
        ),
        [
            (
                *(r.name, _state(r), r.done, r.total, r.waiting, r.dead, r.discarded),
                *(r.skipped, r.cancelled, f"{age(r.began_at)} ago"),
            )
            for r in replays
        ],
        empty="no replays",
    )


def _state(replay: Replay) -> str:
    if replay.state == "stored":
        return "done" if replay.is_over else "running"
    return replay.state


def _described(replay: Replay) -> dict[str, Any]:
    fields = {name: getattr(replay, name) for name in replay.__struct_fields__}
    return {**fields, "state": _state(replay), "done": replay.done}
