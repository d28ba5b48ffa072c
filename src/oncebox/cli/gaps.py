"""gaps: numbers that are waited for, where the messages of a key are numbered."""

from __future__ import annotations

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.asking import asked_why, by_option, why_option, yes_option
from oncebox.cli.group import PARTIAL
from oncebox.cli.output import age, json_option, print_json, print_table
from oncebox.gaps import missing
from oncebox.store.records import Gap


@click.command()
@app_argument
@click.option("--key", help="Only of this key.")
@click.option("--skip", is_flag=True, help="Let the key go on without the missing numbers.")
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
    """Show the numbers that keys wait for; with --skip, go on without them.

    Messages wait here where the identity has a sequence, and a number has not come. Whatever
    carries a number that was skipped, and comes later, is quarantined.
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
    why = why or asked_why()
    if not yes:
        click.confirm(f"Go on without these numbers of {key!r}?", abort=True, err=True)
    skipped: list[Gap] = called(inbox, inbox.gaps.skip, key, why=why, by=by)
    if as_json:
        print_json({"skipped": len(skipped)})
    else:
        click.echo(f"{len(skipped)} skipped")
    if not skipped:
        click.secho("the key is busy, or the number has come: look again", err=True)
        raise SystemExit(PARTIAL)


def _print(found: list[Gap]) -> None:
    print_table(
        ("key", "epoch", "missing", "waiting #", "since"),
        [
            (g.key, g.epoch, missing(g.next, g.lowest), g.early, f"{age(g.waiting_since)} ago")
            for g in found
        ],
        empty="no number is missing",
    )
