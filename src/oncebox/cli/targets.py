"""Targets: dead letters that an operator names by their number, or by the id of their message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
import msgspec

from oncebox.cli.app import called
from oncebox.cli.output import note
from oncebox.errors import NotFound
from oncebox.inbox import Inbox
from oncebox.model.dead_letter import DeadLetter

SHORT = 8
"""Characters of a fingerprint that are shown."""

MANY = 100_000
"""The most dead letters with one of the given ids."""

targets_argument = click.argument("targets", metavar="[NUMBER|ID]...", nargs=-1)


class Targets(msgspec.Struct, frozen=True):
    """The dead letters that were named."""

    numbers: Sequence[int]
    missing: Sequence[str] = ()
    """What no dead letter has as its number or id."""


def short_fingerprint(fingerprint: str | None) -> str:
    """The first characters of a fingerprint, which every command accepts."""
    return (fingerprint or "")[:SHORT]


def find_targets(inbox: Inbox, named: Sequence[str], numbers: Sequence[int]) -> Targets:
    """The numbers of the dead letters that are named by a number, or by the id of their message.

    Raises NotFound if there is none of them, and UsageError if a name has two meanings.
    """
    if not named and not numbers:
        return Targets(())
    asked = {*numbers, *(int(name) for name in named if is_number(name))}
    find = inbox.dead_letters.find
    letters: list[DeadLetter] = called(inbox, find, *sorted(asked)) if asked else []
    by_number = {letter.id: letter for letter in letters}
    letters = called(inbox, find, message_id=list(named), limit=MANY) if named else []
    meant = {name: list(_meanings(name, by_number, letters)) for name in named}
    for name, found in meant.items():
        _check_unique(name, found)
    missing = [name for name, found in meant.items() if not found]
    missing += [str(number) for number in numbers if number not in by_number]
    chosen = {found[0].id for found in meant.values() if found}
    chosen |= {number for number in numbers if number in by_number}
    if not chosen:
        raise NotFound(_not_dead(inbox, missing))
    return Targets(sorted(chosen), missing)


def _not_dead(inbox: Inbox, missing: Sequence[str]) -> str:
    """Why there are no dead letters to act on: the messages with these ids, if there are any."""
    found = called(inbox, inbox.messages.find, ids=list(missing), since=None, limit=len(missing))
    states = [f"message {m.message_id} is {m.state}" for m in found]
    if not states:
        return f"there is no dead letter {', '.join(missing)} in this inbox"
    is_done = any(m.state == "done" for m in found)
    return "; ".join(states) + (": `oncebox replay` runs it again" if is_done else "")


def note_missing(missing: Sequence[str]) -> None:
    """Say which targets are not dead letters, now that others were found."""
    for name in missing:
        note(f"there is no dead letter {name} in this inbox: left out", style="yellow")


def is_number(name: str) -> bool:
    """True if a target may be the number of a dead letter."""
    return name.isascii() and name.isdigit() and len(name) < 19


def _meanings(
    name: str, by_number: dict[int, DeadLetter], letters: Sequence[DeadLetter]
) -> Iterator[DeadLetter]:
    if is_number(name) and int(name) in by_number:
        yield by_number[int(name)]
    for letter in letters:
        if letter.message_id == name and not (is_number(name) and letter.id == int(name)):
            yield letter


def _check_unique(name: str, found: Sequence[DeadLetter]) -> None:
    if len(found) < 2:
        return
    listed = "; ".join(
        f"--number {letter.id}: {letter.state} ({letter.reason}), message {letter.message_id!r} "
        f"of {letter.origin!r}"
        for letter in found[:10]
    )
    raise click.UsageError(
        f"{name!r} is ambiguous, {len(found)} match: choose with {listed}; or use --id {name} for "
        "all with this id"
    )
