"""replay: running messages of the past once more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.asking import (
    Moment,
    asked_why,
    by_option,
    dry_run_option,
    why_option,
    yes_option,
)
from oncebox.cli.group import MISSING
from oncebox.cli.output import (
    age,
    console,
    json_option,
    print_json,
    print_table,
    progress_bar,
    text,
)
from oncebox.inbox import Inbox
from oncebox.past import STATES
from oncebox.replays import Preview
from oncebox.store.records import Replay


@click.command()
@app_argument
@click.argument("name", required=False)
@click.option("--id", "ids", multiple=True, metavar="ID", help="This message; may be repeated.")
@click.option("--type", metavar="TYPE", help="Of this type.")
@click.option("--key", help="Of this key.")
@click.option("--origin", help="Of this origin.")
@click.option("--since", type=Moment(), help="Received since: 2026-07-14T09:30, or 2h ago as 2h.")
@click.option("--until", type=Moment(), help="Received before.")
@click.option("--state", type=click.Choice(STATES), help="In this state; default: done.")
@click.option("--pace", type=float, help="Messages per second at most; changes a running replay.")
@click.option("--cancel", is_flag=True, help="Take back what the replay NAME has not run.")
@click.option("--no-wait", is_flag=True, help="Begin it, and do not watch it.")
@why_option
@by_option
@dry_run_option
@yes_option
@json_option
def replay(app: Reference, name: str | None, as_json: bool, **options: Any) -> None:
    """Run messages of the past once more, in their old order; or show what was replayed.

    \b
    oncebox replay APP                          what was replayed, and what is
    oncebox replay APP --type T --dry-run       how many messages it would be
    oncebox replay APP NAME --type T --since 2026-07-14 --until 2026-07-15
    oncebox replay APP NAME                     how far it is
    oncebox replay APP NAME --pace 50           go on at another pace
    oncebox replay APP NAME --cancel            take back what has not run

    The messages are run by whoever drains the inbox: `oncebox run` or `oncebox drain`. A replay
    goes on whatever happens to this command.
    """
    inbox = app.load()
    names = ("type", "key", "origin", "since", "until", "state")
    which = {what: options[what] for what in names if options[what] is not None}
    if options["ids"]:
        which["ids"] = options["ids"]
    if options["cancel"] or (name and options["pace"] is not None and not which):
        _change(inbox, name, options, as_json)
    elif which:
        _start(inbox, name, which, options, as_json)
    elif name is not None:
        _print(called(inbox, inbox.replays.get, name), as_json)
    else:
        _list(called(inbox, inbox.replays.find), as_json)


def _change(inbox: Inbox, name: str | None, options: dict[str, Any], as_json: bool) -> None:
    if name is None:
        raise click.UsageError("name the replay: oncebox replay APP NAME --cancel")
    if options["dry_run"]:
        raise click.UsageError("--dry-run shows what a new replay would run")
    deed = {"why": options["why"] or asked_why(), "by": options["by"]}
    if options["cancel"]:
        if not options["yes"]:
            click.confirm(f"Take back what {name!r} has not run?", abort=True, err=True)
        _print(called(inbox, inbox.replays.cancel, name, **deed), as_json)
    else:
        _print(called(inbox, inbox.replays.set_pace, name, options["pace"], **deed), as_json)


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
    why = options["why"] or asked_why()
    if not options["yes"]:
        click.confirm(f"Run {preview.count:,} messages once more?", abort=True, err=True)
    begun: Replay = called(
        inbox, inbox.replays.start, name, why=why, by=options["by"], pace=options["pace"], **which
    )
    if options["no_wait"]:
        _print(begun, as_json)
    else:
        _watch(inbox, begun, as_json)


def _print_preview(preview: Preview) -> None:
    click.echo(f"{preview.count:,} messages would run once more")
    if preview.without_payload:
        click.echo(f"{preview.without_payload:,} more match, but have no payload")
    if preview.in_other_states:
        click.echo(f"{preview.in_other_states:,} more match, but are in another state")


def _watch(inbox: Inbox, replay: Replay, as_json: bool) -> None:
    try:
        if not called(inbox, inbox.look.status).workers:
            hint = "nobody drains this inbox: start `oncebox run` or `oncebox drain`"
            click.secho(hint, fg="yellow", err=True)
        with progress_bar("replay", replay.total) as progress:
            while not replay.is_over:
                time.sleep(0.5)
                replay = called(inbox, inbox.replays.get, replay.name)
                progress.seen(replay.stored + replay.skipped - replay.waiting)
    except KeyboardInterrupt:
        again = f"oncebox replay APP {replay.name}"
        click.echo(f"it goes on; to look: {again}, to stop it: {again} --cancel", err=True)
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
            "name",
            "state",
            "done #",
            "of #",
            "waiting #",
            "dead #",
            "discarded #",
            "skipped #",
            "cancelled #",
            "begun",
        ),
        [
            (
                *(r.name, _state(r), r.done, r.total, r.waiting, r.dead, r.discarded),
                *(r.skipped, r.cancelled, f"{age(r.began_at)} ago"),
            )
            for r in replays
        ],
        empty="nothing was replayed",
    )


def _state(replay: Replay) -> str:
    if replay.state == "stored":
        return "done" if replay.is_over else "running"
    return replay.state


def _described(replay: Replay) -> dict[str, Any]:
    fields = {name: getattr(replay, name) for name in replay.__struct_fields__}
    return {**fields, "state": _state(replay), "done": replay.done}
