"""dead, retry, discard: dead letters and quarantine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.asking import asked_why, by_option, dry_run_option, why_option, yes_option
from oncebox.cli.group import MISSING, PARTIAL
from oncebox.cli.output import age, console, json_option, print_json, print_table, progress_bar
from oncebox.dead import Acted
from oncebox.store.records import DeadLetter

PREVIEW = 10

_filters = (
    click.option("--state", type=click.Choice(["dead", "quarantined"])),
    click.option("--reason", help="Such as 'out of attempts' or 'unknown type'."),
    click.option("--type", metavar="TYPE", help="Of this type."),
    click.option("--key", help="Of this key."),
    click.option("--origin", help="Of this origin."),
    click.option("--id", "message_id", metavar="ID", help="Of this message id."),
    click.option("--fingerprint", help="Died of this error: see `oncebox dead`."),
)


def _filtered(command: Any) -> Any:
    for option in reversed(_filters):
        command = option(command)
    return command


@click.command()
@app_argument
@json_option
@click.option("--list", "listed", is_flag=True, help="One line per letter instead of per error.")
@click.option("--limit", "-n", type=click.IntRange(1), default=50, show_default=True)
@_filtered
def dead(app: Reference, as_json: bool, listed: bool, limit: int, **filter: Any) -> None:
    """Show dead letters and quarantine, grouped by what they died of."""
    inbox = app.load()
    if listed or any(value is not None for value in filter.values()):
        letters = called(inbox, inbox.dead.find, limit=limit, **filter)
        print_json([_described(x) for x in letters]) if as_json else _print_letters(letters)
        return
    groups = called(inbox, inbox.look.dead_groups, limit=limit)
    if as_json:
        print_json(groups)
        return
    print_table(
        ("count #", "state", "reason", "type", "last", "fingerprint", "error"),
        [
            (
                g.count,
                g.state,
                g.reason,
                g.type,
                f"{age(g.died_at)} ago",
                g.fingerprint,
                _short(g.error),
            )
            for g in groups
        ],
        empty="no dead letters",
    )


def _described(letter: DeadLetter) -> dict[str, Any]:
    """A letter for programs: its payload as text, as far as it is text."""
    fields = {name: getattr(letter, name) for name in letter.__struct_fields__}
    fields["payload"] = letter.payload.decode("utf-8", "backslashreplace")
    fields["content_hash"] = letter.content_hash.hex() if letter.content_hash else None
    return fields


def _print_letters(letters: Sequence[DeadLetter]) -> None:
    print_table(
        ("number #", "state", "reason", "type", "id", "key", "runs #", "died", "error"),
        [
            (
                x.id,
                x.state,
                x.reason,
                x.type,
                x.message_id,
                x.key,
                x.attempts,
                f"{age(x.died_at)} ago",
                _short(x.error),
            )
            for x in letters
        ],
        empty="no dead letter matches",
    )


def _short(error: str | None) -> str:
    return (error or "").splitlines()[0][:80] if error else ""


def _acting(command: Callable[..., None]) -> Any:
    for option in reversed(
        (
            click.argument("numbers", type=int, nargs=-1),
            *_filters,
            click.option("--all", "everything", is_flag=True, help="All of them."),
            why_option,
            by_option,
            dry_run_option,
            yes_option,
            json_option,
        )
    ):
        command = option(command)
    return command


@click.command()
@app_argument
@_acting
def retry(app: Reference, **options: Any) -> None:
    """Put dead letters back at the head of their keys; release quarantined ones.

    NUMBERS are those that `oncebox dead --list` shows; or give filters.
    """
    _act("retry", app, **options)


@click.command()
@app_argument
@_acting
def discard(app: Reference, **options: Any) -> None:
    """Remove dead letters for good, and let their keys go on.

    NUMBERS are those that `oncebox dead --list` shows; or give filters.
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
    matching: list[DeadLetter] = called(inbox, inbox.dead.find, *numbers, limit=100_001, **filter)
    if not matching:
        click.secho("no dead letter matches", err=True)
        raise SystemExit(MISSING)
    if not as_json:
        _preview(verb, matching)
    if dry_run:
        if as_json:
            print_json({"would": verb, "count": len(matching)})
        return
    why = why or asked_why()
    if not yes:
        click.confirm(f"{verb} {len(matching):,}?", abort=True, err=True)
    deed = {"why": why, "by": by, "everything": everything, **filter}
    with progress_bar(verb, len(matching)) as progress:
        method = getattr(inbox.dead, verb)
        acted = called(inbox, method, *numbers, progress=progress.seen, **deed)
    _tell(verb, acted, as_json)


def _tell(verb: str, acted: Acted, as_json: bool) -> None:
    if as_json:
        print_json({"act": verb, "done": acted.done, "left": acted.left})
    else:
        console.print(
            f"{verb}: {acted.done:,} done" + (f", {acted.left:,} left" * bool(acted.left))
        )
    if acted.left:
        raise SystemExit(PARTIAL)


def _preview(verb: str, matching: Sequence[DeadLetter]) -> None:
    _print_letters(matching[:PREVIEW])
    if len(matching) > PREVIEW:
        console.print(f"... and {len(matching) - PREVIEW:,} more")
