"""Command `gaps`: lists missing sequence numbers and skips them."""

from __future__ import annotations

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import PARTIAL
from oncebox.cli.output import age, json_option, print_json, print_table
from oncebox.cli.prompts import by_option, confirm, prompted_why, why_option, yes_option
from oncebox.model.gap import Gap
from oncebox.operations.gaps import missing


@click.command()
@app_argument
@click.option("--key", help="Only this key.")
@click.option("--skip", is_flag=True, help="Run the messages of the key without the missing ones.")
@why_option
@by_option
@yes_option
@json_option
def gaps(
    app: Reference,
    key: str | None,
    skip: bool,
    why: str | None,
    by: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """List or skip missing sequence numbers.

    Messages wait here if the identity has a sequence and a lower number has not arrived. A message
    whose number was skipped is quarantined if it arrives later.
    """
    inbox = app.load()
    found: list[Gap] = called(inbox, inbox.gaps.find, key=key)
    if not skip:
        print_json(found) if as_json else _print(found)
        return
    if key is None:
        raise click.UsageError("name the key: --key KEY --skip")
    if not as_json:
        _print(found)
    why = why or prompted_why()
    confirm(f"Skip these numbers of key {key!r}?", yes=yes)
    skipped: list[Gap] = called(inbox, inbox.gaps.skip, key, why=why, by=by)
    if as_json:
        print_json({"skipped": len(skipped)})
    else:
        click.echo(f"{len(skipped)} skipped")
    if not skipped:
        click.secho("the key is locked, or the number has arrived: try again", err=True)
        raise SystemExit(PARTIAL)


def _print(found: list[Gap]) -> None:
    print_table(
        ("key", "epoch", "missing", "waiting #", "since"),
        [
            (g.key, g.epoch, missing(g.next, g.lowest), g.waiting, f"{age(g.waiting_since)} ago")
            for g in found
        ],
        empty="no sequence numbers are missing",
    )
