"""Command `show`: everything about a message, a dead letter or a quarantined delivery."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.commands import USAGE
from oncebox.cli.documents import document, id_text, print_json
from oncebox.cli.options import json_option, origin_option
from oncebox.cli.output import (
    note,
    print_line,
    print_properties,
    printable,
    styled_state,
    text,
)
from oncebox.cli.targets import short_fingerprint
from oncebox.errors import NotFound
from oncebox.inbox import Inbox
from oncebox.model.dead_letter import DeadLetter
from oncebox.model.inspection import MessageDetail

LONGEST_PAYLOAD = 2_000
"""Bytes of a payload that `show` prints."""

MANY = 1_000
"""The most quarantined deliveries with one id that are looked at."""


class Entry(msgspec.Struct, frozen=True):
    """One thing to show: a message, its dead letter, or a delivery that was never claimed."""

    detail: MessageDetail | None = None
    letter: DeadLetter | None = None
    related: Sequence[DeadLetter] = ()
    """Other dead letters and quarantined deliveries with the same origin and id."""


@click.command()
@app_argument
@click.argument("target", metavar="[ID|NUMBER]", required=False)
@click.option("--id", "id", metavar="ID", help="The message with this id.")
@click.option(
    "--number", type=click.IntRange(1), metavar="NUMBER", help="The dead letter with this number."
)
@origin_option
@json_option
def show(
    app: Reference,
    target: str | None,
    id: str | None,
    number: int | None,
    origin: str | None,
    as_json: bool,
) -> None:
    """Show a message with its payload, attempts and audit entries.

    It finds finished and pending messages, dead letters and quarantined deliveries, by the id of
    the message or by the number of the dead letter.
    """
    if sum(value is not None for value in (target, id, number)) != 1:
        raise click.UsageError("name one message: an ID or a NUMBER, --id ID, or --number NUMBER")
    inbox = app.load()
    named = target if target is not None else id
    if target is not None and target.isascii() and target.isdigit() and len(target) < 19:
        number = int(target)
    found = [] if named is None else _entries_of_id(inbox, named, origin)
    if number is not None:
        found = _merged(found, _entry_of_number(inbox, number, origin))
    if not found:
        what = f"number {number}" if named is None else repr(named)
        of = "" if origin is None else f" of origin {origin!r}"
        raise NotFound(f"there is no message or dead letter {what}{of} in this inbox")
    if len(found) > 1:
        _refuse(str(app), str(named), found)
    print_json(_document(found[0])) if as_json else _print(found[0])


def _entries_of_id(inbox: Inbox, id: str, origin: str | None) -> list[Entry]:
    """One entry per claimed message, and one per quarantined delivery without such a message."""
    letters: list[DeadLetter] = called(
        inbox, inbox.dead_letters.find, message_id=id, origin=origin, limit=MANY
    )
    entries = []
    for detail in _details(inbox, id, origin):
        own = [x for x in letters if x.id == detail.letter]
        related = [x for x in letters if x.origin == detail.message.origin and x not in own]
        entries.append(Entry(detail, own[0] if own else None, related))
        letters = [x for x in letters if x not in own and x not in related]
    return entries + [Entry(letter=letter) for letter in letters]


def _details(inbox: Inbox, id: str, origin: str | None) -> list[MessageDetail]:
    try:
        found: list[MessageDetail] = called(inbox, inbox.messages.get, id, origin=origin)
    except NotFound:
        return []
    return found


def _entry_of_number(inbox: Inbox, number: int, origin: str | None) -> Entry | None:
    """The entry of a dead letter. A claimed message is shown with its history."""
    found = called(inbox, inbox.dead_letters.find, number, origin=origin)
    if not found:
        return None
    letter: DeadLetter = found[0]
    if letter.message_id is not None and letter.seq is not None:
        for detail in _details(inbox, letter.message_id, letter.origin):
            if detail.letter == number:
                return Entry(detail, letter)
    return Entry(letter=letter)


def _merged(entries: list[Entry], entry: Entry | None) -> list[Entry]:
    """The entries, and another one unless it is among them."""
    if entry is None or entry.letter is None:
        return entries
    known = [e.letter.id for e in entries if e.letter is not None]
    return entries if entry.letter.id in known else [*entries, entry]


def _refuse(app: str, named: str, found: Sequence[Entry]) -> None:
    """Say which entries match, and the command that shows each of them."""
    note(f"error: {named!r} is ambiguous, {len(found)} match. Show one of them:", style="red")
    for entry in found:
        note(f"{_command(app, entry)}  # {_described(entry)}")
    raise SystemExit(USAGE)


def _command(app: str, entry: Entry) -> str:
    if entry.detail is not None:
        message = entry.detail.message
        words = ["--id", message.message_id, "--origin", message.origin]
    else:
        words = ["--number", str(entry.letter.id if entry.letter else "")]
    return shlex.join(["oncebox", "show", app, *words])


def _described(entry: Entry) -> str:
    if entry.detail is not None:
        message = entry.detail.message
        return f"{message.state}, type {message.type}, received {text(message.received_at)}"
    assert entry.letter is not None
    letter = entry.letter
    return f"{letter.state} ({letter.reason}), message {letter.message_id!r} of {letter.origin!r}"


def _document(entry: Entry) -> dict[str, Any]:
    """One object, with the same fields for a message and for a delivery without one."""
    found: dict[str, Any] = document(entry.letter) if entry.letter else {}
    if entry.detail is not None:
        found |= document(entry.detail)
    related = [id_text(letter.id) for letter in entry.related]
    return {**found, "related_dead_letter_ids": related}


def _print(entry: Entry) -> None:
    properties = _letter_properties if entry.detail is None else _message_properties
    print_properties([*properties(entry), *_related(entry)])
    if entry.detail is not None:
        _print_history(entry.detail)


def _related(entry: Entry) -> Iterator[tuple[str, Any]]:
    for letter in entry.related:
        yield "see also", f"dead letter {letter.id}, {letter.state} ({letter.reason})"


def _message_properties(entry: Entry) -> Iterator[tuple[str, Any]]:
    assert entry.detail is not None
    detail, message = entry.detail, entry.detail.message
    yield "id", message.message_id
    yield "origin", message.origin
    yield "type", f"{message.type} (version {message.version})"
    yield "key", message.key
    yield from _state(message.state, message.reason)
    yield "waits", detail.waits
    yield "dead letter", str(detail.letter) if detail.letter else None
    yield "error", message.last_error
    yield "fingerprint", short_fingerprint(entry.letter.fingerprint) if entry.letter else None
    yield "received", message.received_at
    yield "processed", message.processed_at
    yield "from", f"{detail.source or ''} {detail.coordinates or ''}".strip()
    yield "headers", detail.headers
    yield "payload", _payload(detail.payload)


def _letter_properties(entry: Entry) -> Iterator[tuple[str, Any]]:
    assert entry.letter is not None
    letter = entry.letter
    yield "dead letter", str(letter.id)
    yield "id", letter.message_id
    yield "origin", letter.origin
    yield "type", letter.type and f"{letter.type} (version {letter.version})"
    yield "key", letter.key
    yield from _state(letter.state, letter.reason)
    yield "error", letter.error
    yield "fingerprint", short_fingerprint(letter.fingerprint)
    yield "replay", str(letter.replay) if letter.replay else None
    yield letter.state, letter.dead_at
    yield "from", f"{letter.source or ''} {letter.coordinates or ''}".strip()
    yield "headers", msgspec.json.encode(letter.headers).decode() if letter.headers else None
    yield "payload", _payload(letter.payload)


def _state(state: str, reason: str | None) -> Iterator[tuple[str, Any]]:
    shown = styled_state(state)
    yield "state", shown.append(f" ({reason})") if reason else shown


def _print_history(detail: MessageDetail) -> None:
    for attempt in detail.attempts:
        lasted = "" if attempt.duration is None else f" after {attempt.duration:.3f} s"
        print_line("")
        print_line(
            f"attempt {attempt.number}{_of(attempt.replay)} {attempt.outcome}{lasted}, "
            f"{text(attempt.ended_at)}, {printable(attempt.worker)}",
            style="bold",
        )
        if attempt.error:
            print_line(printable(attempt.error.rstrip()))
    for action in detail.actions:
        print_line("")
        print_line(
            f"{action.action}{_of(action.replay)} by {printable(action.by)}, "
            f"{text(action.at)}: {printable(action.why)}"
        )


def _of(replay: int) -> str:
    return f" of replay {replay}" if replay else ""


def _payload(payload: bytes | None) -> str:
    if payload is None:
        return "(not kept)"
    shown = printable(payload[:LONGEST_PAYLOAD].decode("utf-8", "backslashreplace"))
    return shown + (f" ... ({len(payload):,} bytes)" if len(payload) > LONGEST_PAYLOAD else "")
