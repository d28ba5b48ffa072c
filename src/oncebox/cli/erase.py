"""Command `erase`: deletes the content of messages."""

from __future__ import annotations

from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import MISSING, PARTIAL
from oncebox.cli.documents import print_json
from oncebox.cli.messages import print_examples
from oncebox.cli.options import action_options, given, message_filters
from oncebox.cli.output import counted, note, print_line, progress_bar
from oncebox.cli.prompts import confirm, prompted_why
from oncebox.model.filters import REPLAYABLE
from oncebox.operations.erase import Erased


@click.command()
@app_argument
@message_filters(REPLAYABLE, state=" or ".join(REPLAYABLE))
@action_options
def erase(
    app: Reference,
    why: str | None,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **filter: Any,
) -> None:
    """Delete the content of messages permanently.

    Payloads, headers and error texts are deleted. The ids stay, so that duplicates are still
    recognised. Unfinished, dead and quarantined messages are not erased: run or discard them first.
    Archives are not changed.
    """
    inbox = app.load()
    which = given(filter)
    if not which:
        raise click.UsageError("give at least one filter: --key, --id, ...")
    count = called(inbox, inbox.messages.count_erasable, **which)
    if as_json and dry_run:
        print_json({"action": "erase", "dry_run": True, "matching": count})
    if not as_json:
        print_examples(inbox, count, {"state": REPLAYABLE, **which})
        are = "matches and has" if count == 1 else "match and have"
        print_line(f"{counted(count, 'message')} {are} content to erase")
    if dry_run:
        return
    why = prompted_why(why)
    confirm("Erase their content permanently?", yes=yes)
    with progress_bar("erase", count) as progress:
        erased: Erased = called(
            inbox, inbox.messages.erase, why=why, by=by, progress=progress.set_done, **which
        )
    _print(erased, count, as_json)
    if erased.left:
        raise SystemExit(PARTIAL)
    if not erased.done:
        raise SystemExit(MISSING)


def _print(erased: Erased, count: int, as_json: bool) -> None:
    if as_json:
        result = {"matching": count, "done": erased.done, "left": erased.left}
        print_json({"action": "erase", "dry_run": False, **result})
        return
    print_line(f"erased {counted(erased.done, 'message')}")
    if erased.left:
        left = f"{counted(erased.left, 'message')} left"
        why = "unfinished, quarantined, in a replay or locked"
        note(f"{left}: {why}: let them end, discard them, or try again", style="yellow")
