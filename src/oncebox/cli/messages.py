"""Commands `list`, `show` and `tail`: the messages of an inbox."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.options import together
from oncebox.cli.output import console, json_option, print_json, print_table, printable, text
from oncebox.cli.prompts import Span
from oncebox.model.inspection import MessageDetail, MessageSummary

STATES = ("pending", "awaiting_sequence", "done", "dead", "quarantined", "discarded")

LONGEST_PAYLOAD = 2_000
"""Bytes of a payload that `show` prints."""

_filters = together(
    click.option("--state", type=click.Choice(STATES), help="Only messages in this state."),
    click.option("--type", "type_", metavar="TYPE", help="Only messages of this type."),
    click.option("--key", help="Only messages of this key."),
    click.option(
        "--since", type=Span(), default="1d", show_default=True, help="Received in this time."
    ),
    click.option("--limit", "-n", type=click.IntRange(1), default=50, show_default=True),
)


@click.command("list")
@app_argument
@json_option
@_filters
def list_messages(app: Reference, as_json: bool, type_: str | None, **wanted: Any) -> None:
    """List messages, the newest last."""
    inbox = app.load()
    found = called(inbox, inbox.messages.find, type=type_, **wanted)
    print_json(found) if as_json else _print_messages(found)
    if wanted["state"] == "quarantined":
        hint = (
            "deliveries without a valid id are shown by: "
            "oncebox dead-letters --list --state quarantined"
        )
        click.secho(hint, dim=True, err=True)


def _print_messages(found: list[MessageSummary]) -> None:
    print_table(
        ("received", "state", "type", "id", "key", "attempts #", "reason"),
        [
            (m.received_at, m.state, m.type, m.message_id, m.key, m.attempts, _reason(m))
            for m in found
        ],
        empty="no messages match",
    )


def _reason(message: MessageSummary) -> str:
    return ": ".join(filter(None, (message.reason, (message.last_error or "")[:80])))


@click.command()
@app_argument
@click.argument("id")
@click.option("--origin", help="Only the message of this origin.")
@json_option
def show(app: Reference, id: str, origin: str | None, as_json: bool) -> None:
    """Show a message with its payload, attempts and audit entries."""
    inbox = app.load()
    found = called(inbox, inbox.messages.get, id, origin=origin)
    if as_json:
        print_json(found)
        return
    for detail in found:
        _print_detail(detail)


def _print_detail(detail: MessageDetail) -> None:
    for name, value in _properties(detail):
        if value is not None:
            console.print(f"[bold]{name:<11}[/bold] {text(value)}")
    for attempt in detail.attempts:
        lasted = "" if attempt.duration is None else f" after {attempt.duration:.3f} s"
        console.print(
            f"\n[bold]attempt {attempt.number}[/bold]{_of(attempt.replay)} {attempt.outcome}"
            f"{lasted}, {text(attempt.ended_at)}, {text(attempt.worker)}"
        )
        if attempt.error:
            console.print(text(attempt.error.rstrip()))
    for action in detail.actions:
        console.print(
            f"\n[bold]{action.action}[/bold]{_of(action.replay)} by {text(action.by)}, "
            f"{text(action.at)}: {text(action.why)}"
        )
    console.print()


def _properties(detail: MessageDetail) -> Iterator[tuple[str, Any]]:
    message = detail.message
    yield "id", message.message_id
    yield "origin", message.origin
    yield "type", f"{message.type} (version {message.version})"
    yield "key", message.key
    yield "state", message.state + (f" ({message.reason})" if message.reason else "")
    yield "waits", detail.waits
    yield "dead letter", detail.letter
    yield "error", message.last_error
    yield "received", message.received_at
    yield "processed", message.processed_at
    yield "from", f"{detail.source or ''} {detail.coordinates or ''}".strip()
    yield "headers", detail.headers
    yield "payload", _payload(detail.payload)


def _of(replay: int) -> str:
    return f" of replay {replay}" if replay else ""


def _payload(payload: bytes | None) -> str:
    if payload is None:
        return "(not kept)"
    shown = printable(payload[:LONGEST_PAYLOAD].decode("utf-8", "backslashreplace"))
    return shown + (f" ... ({len(payload):,} bytes)" if len(payload) > LONGEST_PAYLOAD else "")


@click.command()
@app_argument
@json_option
@click.option("--follow", "-f", is_flag=True, help="Also print new messages, until Ctrl-C.")
@_filters
def tail(app: Reference, as_json: bool, follow: bool, type_: str | None, **wanted: Any) -> None:
    """Print the newest messages, one per line."""
    inbox = app.load()
    after: int | None = None
    while True:
        found = called(inbox, inbox.messages.find, type=type_, after=after, **wanted)
        for message in found:
            print_json(message) if as_json else click.echo(_line(message))
            after = max(after or 0, message.seq)
        if not follow:
            return
        try:
            time.sleep(0.5)
        except KeyboardInterrupt:
            return


def _line(message: MessageSummary) -> str:
    values = (message.type, message.message_id, message.key or "", _reason(message))
    start = f"{text(message.received_at)}  {message.state:<11} "
    return (start + "  ".join(map(printable, values))).rstrip()
