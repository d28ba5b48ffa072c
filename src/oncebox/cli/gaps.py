"""Command `gaps`: lists missing sequence numbers and skips them."""

from __future__ import annotations

from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import MISSING, PARTIAL
from oncebox.cli.documents import print_json
from oncebox.cli.options import action_options, key_option, limit_option
from oncebox.cli.output import ago, counted, note, print_line, print_table
from oncebox.cli.prompts import confirm, prompted_why
from oncebox.inbox import Inbox
from oncebox.model.gap import Gap
from oncebox.operations.gaps import AT_ONCE, missing

NOTHING = "no sequence numbers are missing"


@click.command()
@app_argument
@key_option
@limit_option
@click.option("--skip", is_flag=True, help="Run the messages of the key without the missing ones.")
@action_options
def gaps(
    app: Reference, key: str | None, limit: int, skip: bool, as_json: bool, **options: Any
) -> None:
    """List or skip missing sequence numbers.

    Messages wait here if the identity has a sequence and a lower number has not arrived. A message
    whose number was skipped is quarantined if it arrives later.
    """
    if skip and key is None:
        raise click.UsageError("name the key: --key KEY --skip")
    if options["dry_run"] and not skip:
        raise click.UsageError("--dry-run needs --skip: without it, nothing is changed")
    inbox = app.load()
    found: list[Gap] = called(inbox, inbox.gaps.find, key=key, limit=AT_ONCE if skip else limit)
    if as_json and not skip:
        print_json(found)
    if not as_json:
        _print(found)
    if skip and not found:
        note(f"key {key!r} has no missing sequence number")
        raise SystemExit(MISSING)
    if skip and options["dry_run"]:
        if as_json:
            print_json({"action": "skip", "dry_run": True, "matching": len(found)})
    elif skip:
        _skip(inbox, str(key), found, options, as_json=as_json)


def _skip(
    inbox: Inbox, key: str, found: list[Gap], options: dict[str, Any], *, as_json: bool
) -> None:
    why = prompted_why(options["why"])
    gaps = counted(len(found), "gap")
    confirm(f"Skip {gaps} of key {key!r}?", yes=options["yes"])
    skipped: list[Gap] = called(inbox, inbox.gaps.skip, key, why=why, by=options["by"])
    left = max(0, len(found) - len(skipped))
    if as_json:
        result = {"matching": len(found), "done": len(skipped), "left": left}
        print_json({"action": "skip", "dry_run": False, **result})
    else:
        print_line(f"skipped {counted(len(skipped), 'gap')}")
    if left:
        still = f"{counted(left, 'gap')} of key {key!r} left"
        note(f"{still}: the key is locked, or a number has arrived; try again", style="yellow")
        raise SystemExit(PARTIAL)


def _print(found: list[Gap]) -> None:
    print_table(
        ("key", "epoch", "missing", "waiting", "since"),
        [
            (
                *(g.key, g.epoch, missing(g.next, g.lowest)),
                *(counted(g.waiting, "message"), ago(g.waiting_since)),
            )
            for g in found
        ],
        empty=NOTHING,
    )
