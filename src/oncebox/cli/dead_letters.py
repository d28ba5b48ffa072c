"""Commands `dead-letters`, `retry` and `discard`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import MISSING, PARTIAL
from oncebox.cli.documents import print_json
from oncebox.cli.options import (
    action_options,
    error_filters,
    given,
    json_option,
    limit_option,
    message_filters,
    number_option,
    together,
)
from oncebox.cli.output import (
    ago,
    counted,
    note,
    print_line,
    print_table,
    progress_bar,
    styled_state,
)
from oncebox.cli.prompts import confirm, prompted_why
from oncebox.cli.targets import (
    Targets,
    find_targets,
    note_missing,
    short_fingerprint,
    targets_argument,
)
from oncebox.inbox import Inbox
from oncebox.model.dead_letter import DeadLetter
from oncebox.model.filters import DEAD_STATES
from oncebox.model.inspection import DeadLetterGroup
from oncebox.operations.dead_letters import Acted

PREVIEW = 10
"""Dead letters that `retry` and `discard` show before they ask."""

ALL_GROUPS = 1_000_000
"""More than the number of different errors."""

_filters = together(message_filters(DEAD_STATES), error_filters, number_option)


@click.command("dead-letters")
@app_argument
@targets_argument
@click.option("--list", "listed", is_flag=True, help="One line per dead letter, not per error.")
@_filters
@limit_option
@json_option
def dead_letters(
    app: Reference,
    targets: Sequence[str],
    numbers: Sequence[int],
    as_json: bool,
    listed: bool,
    limit: int,
    **options: Any,
) -> None:
    """Show dead letters and quarantined messages.

    They are grouped by error. A NUMBER is the number of a dead letter, an ID is the id of its
    message. Filters select dead letters too.
    """
    inbox = app.load()
    chosen = find_targets(inbox, targets, numbers)
    note_missing(chosen.missing)
    method = inbox.dead_letters.find if listed or chosen.numbers else inbox.dead_letters.groups
    found = called(inbox, method, *chosen.numbers, limit=limit, **_selected(options))
    if as_json:
        print_json(found)
    elif listed or chosen.numbers:
        _print_letters(found)
    else:
        _print_groups(found)


def _selected(options: dict[str, Any]) -> dict[str, Any]:
    """The filters that are set, by the names of the operations."""
    filter = given(options)
    if "ids" in filter:
        filter["message_id"] = filter.pop("ids")
    return filter


def _print_groups(groups: Sequence[DeadLetterGroup]) -> None:
    print_table(
        ("count #", "state", "reason", "type", "last", "fingerprint", "error"),
        [
            (
                *(g.count, styled_state(g.state), g.reason, g.type, ago(g.dead_at)),
                *(short_fingerprint(g.fingerprint), _first_line(g.error)),
            )
            for g in groups
        ],
        empty="no dead letters",
        wraps="error",
    )


def _print_letters(letters: Sequence[DeadLetter]) -> None:
    print_table(
        ("number #", "state", "reason", "type", "id", "key", "attempts #", "dead since", "error"),
        [
            (
                *(str(x.id), styled_state(x.state), x.reason, x.type, x.message_id, x.key),
                *(x.attempts, ago(x.dead_at), _first_line(x.error)),
            )
            for x in letters
        ],
        empty="no dead letters match",
        wraps="error",
    )


def _first_line(error: str | None) -> str:
    return error.splitlines()[0] if error else ""


_action = together(
    targets_argument,
    _filters,
    click.option("--all", "everything", is_flag=True, help="All dead letters."),
    action_options,
)


@click.command()
@app_argument
@_action
def retry(app: Reference, **options: Any) -> None:
    """Run dead letters again, and release quarantined messages.

    A dead letter runs before the later messages of its key.

    A NUMBER is the number of a dead letter, an ID is the id of its message. Filters select dead
    letters too.
    """
    _act("retry", app, **options)


@click.command()
@app_argument
@_action
def discard(app: Reference, **options: Any) -> None:
    """Remove dead letters permanently, and unblock their keys.

    A NUMBER is the number of a dead letter, an ID is the id of its message. Filters select dead
    letters too.
    """
    _act("discard", app, **options)


def _act(
    verb: str,
    app: Reference,
    *,
    targets: Sequence[str],
    numbers: Sequence[int],
    everything: bool,
    why: str | None,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    filter = _selected(options)
    if not (targets or numbers or everything or filter):
        raise click.UsageError("give numbers or ids, filters, or --all")
    inbox = app.load()
    chosen = find_targets(inbox, targets, numbers)
    count = _preview(inbox, chosen, filter, as_json=as_json)
    if not count:
        note("no dead letters match")
        if as_json:
            _print_json(verb, 0, Acted(0, 0), dry_run=dry_run)
        raise SystemExit(MISSING)
    if dry_run:
        if as_json:
            _print_json(verb, count, Acted(0, 0), dry_run=True)
        return
    audit = {"why": prompted_why(why), "by": by, "everything": everything}
    confirm(f"{verb.capitalize()} {counted(count, 'dead letter')}?", yes=yes)
    method = getattr(inbox.dead_letters, verb)
    with progress_bar(verb, count) as progress:
        acted: Acted = called(
            inbox, method, *chosen.numbers, progress=progress.set_done, **audit, **filter
        )
    _print_result(verb, count, acted, as_json)
    if acted.left or chosen.missing:
        raise SystemExit(PARTIAL)


def _preview(inbox: Inbox, chosen: Targets, filter: dict[str, Any], *, as_json: bool) -> int:
    """Show some of the dead letters that match. Returns how many match."""
    dead = inbox.dead_letters
    groups: list[DeadLetterGroup] = called(
        inbox, dead.groups, *chosen.numbers, limit=ALL_GROUPS, **filter
    )
    count = sum(group.count for group in groups)
    note_missing(chosen.missing)
    if count and not as_json:
        _print_letters(called(inbox, dead.find, *chosen.numbers, limit=PREVIEW, **filter))
        if count > PREVIEW:
            print_line(f"... and {count - PREVIEW:,} more")
    return count


def _print_json(verb: str, count: int, acted: Acted, *, dry_run: bool) -> None:
    result = {} if dry_run else {"done": acted.done, "left": acted.left}
    print_json({"action": verb, "dry_run": dry_run, "matching": count, **result})


def _print_result(verb: str, count: int, acted: Acted, as_json: bool) -> None:
    if as_json:
        _print_json(verb, count, acted, dry_run=False)
        return
    past = {"retry": "retried", "discard": "discarded"}[verb]
    print_line(f"{past} {counted(acted.done, 'dead letter')}")
    if acted.left:
        note(f"{counted(acted.left, 'dead letter')} left: {_why_left(acted)}", style="yellow")


def _why_left(acted: Acted) -> str:
    without_id = "still without an id: fix identity= or discard it"
    if acted.without_id == acted.left:
        return without_id
    others = "gone meanwhile, quarantined for another reason, or their key is locked; try again"
    if acted.without_id:
        return f"{acted.without_id:,} {without_id}; the others are {others}"
    return others
