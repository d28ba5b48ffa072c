"""Commands `dead-letters`, `retry` and `discard`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import MISSING, PARTIAL
from oncebox.cli.options import together
from oncebox.cli.output import age, console, json_option, print_json, print_table, progress_bar
from oncebox.cli.prompts import (
    by_option,
    confirm,
    dry_run_option,
    prompted_why,
    why_option,
    yes_option,
)
from oncebox.model.dead_letter import DeadLetter
from oncebox.operations.dead_letters import Acted

PREVIEW = 10
"""Dead letters that `retry` and `discard` show before they ask."""

_filters = together(
    click.option("--state", type=click.Choice(["dead", "quarantined"])),
    click.option("--reason", help="For example out_of_attempts or unknown_type."),
    click.option("--type", metavar="TYPE", help="Messages of this type."),
    click.option("--key", help="Messages of this key."),
    click.option("--origin", help="Messages of this origin."),
    click.option("--id", "message_id", metavar="ID", help="Messages with this id."),
    click.option("--fingerprint", help="With this error, as `oncebox dead-letters` shows it."),
)


@click.command("dead-letters")
@app_argument
@json_option
@click.option("--list", "listed", is_flag=True, help="One line per dead letter, not per error.")
@click.option("--limit", "-n", type=click.IntRange(1), default=50, show_default=True)
@_filters
def dead_letters(app: Reference, as_json: bool, listed: bool, limit: int, **filter: Any) -> None:
    """Show dead letters and quarantined messages, grouped by error."""
    inbox = app.load()
    if listed or any(value is not None for value in filter.values()):
        letters = called(inbox, inbox.dead_letters.find, limit=limit, **filter)
        print_json([_described(x) for x in letters]) if as_json else _print_letters(letters)
        return
    groups = called(inbox, inbox.dead_letters.groups, limit=limit)
    if as_json:
        print_json(groups)
        return
    print_table(
        ("count #", "state", "reason", "type", "last", "fingerprint", "error"),
        [
            (
                *(g.count, g.state, g.reason, g.type),
                *(f"{age(g.dead_at)} ago", g.fingerprint, _short(g.error)),
            )
            for g in groups
        ],
        empty="no dead letters",
    )


def _described(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter for JSON: its payload as text, with other bytes escaped."""
    fields = {name: getattr(letter, name) for name in letter.__struct_fields__}
    fields["payload"] = letter.payload.decode("utf-8", "backslashreplace")
    fields["content_hash"] = letter.content_hash.hex() if letter.content_hash else None
    return fields


def _print_letters(letters: Sequence[DeadLetter]) -> None:
    print_table(
        ("number #", "state", "reason", "type", "id", "key", "attempts #", "dead since", "error"),
        [
            (
                *(x.id, x.state, x.reason, x.type, x.message_id, x.key, x.attempts),
                *(f"{age(x.dead_at)} ago", _short(x.error)),
            )
            for x in letters
        ],
        empty="no dead letters match",
    )


def _short(error: str | None) -> str:
    return (error or "").splitlines()[0][:80] if error else ""


_action_options = together(
    click.argument("numbers", type=int, nargs=-1),
    _filters,
    click.option("--all", "everything", is_flag=True, help="All dead letters."),
    why_option,
    by_option,
    dry_run_option,
    yes_option,
    json_option,
)


@click.command()
@app_argument
@_action_options
def retry(app: Reference, **options: Any) -> None:
    """Run dead letters again, and release quarantined messages.

    A dead letter runs before the later messages of its key.

    NUMBERS are shown by `oncebox dead-letters --list`. Filters select dead letters too.
    """
    _act("retry", app, **options)


@click.command()
@app_argument
@_action_options
def discard(app: Reference, **options: Any) -> None:
    """Remove dead letters permanently, and unblock their keys.

    NUMBERS are shown by `oncebox dead-letters --list`. Filters select dead letters too.
    """
    _act("discard", app, **options)


def _act(
    verb: str,
    app: Reference,
    *,
    numbers: Sequence[int],
    everything: bool,
    why: str | None,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **filter: Any,
) -> None:
    inbox = app.load()
    if not (numbers or everything or any(value is not None for value in filter.values())):
        raise click.UsageError("give numbers, filters, or --all")
    matching: list[DeadLetter] = called(
        inbox, inbox.dead_letters.find, *numbers, limit=100_001, **filter
    )
    if not matching:
        click.secho("no dead letters match", err=True)
        raise SystemExit(MISSING)
    if not as_json:
        _preview(matching)
    if dry_run:
        if as_json:
            print_json({"would": verb, "count": len(matching)})
        return
    why = why or prompted_why()
    confirm(f"{verb.capitalize()} {len(matching):,} dead letters?", yes=yes)
    audit = {"why": why, "by": by, "everything": everything, **filter}
    with progress_bar(verb, len(matching)) as progress:
        method = getattr(inbox.dead_letters, verb)
        acted = called(inbox, method, *numbers, progress=progress.set_done, **audit)
    _print_result(verb, acted, as_json)
    if acted.left:
        raise SystemExit(PARTIAL)


def _preview(matching: Sequence[DeadLetter]) -> None:
    _print_letters(matching[:PREVIEW])
    if len(matching) > PREVIEW:
        console.print(f"... and {len(matching) - PREVIEW:,} more")


def _print_result(verb: str, acted: Acted, as_json: bool) -> None:
    if as_json:
        print_json({"action": verb, "done": acted.done, "left": acted.left})
    else:
        left = f", {acted.left:,} left" if acted.left else ""
        console.print(f"{verb}: {acted.done:,} done{left}")
