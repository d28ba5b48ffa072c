"""Commands `list` and `tail`: the messages of an inbox."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.documents import print_json
from oncebox.cli.options import (
    error_filters,
    given,
    json_option,
    limit_option,
    message_filters,
    together,
)
from oncebox.cli.output import GAP, note, print_line, print_table, printable, styled_state, text
from oncebox.inbox import Inbox
from oncebox.model.filters import STATES
from oncebox.model.inspection import MessageSummary

EXAMPLES = 5
"""Messages that a command shows before it changes them."""

_filters = together(message_filters(STATES, since="1d"), error_filters, limit_option, json_option)


@click.command("list")
@app_argument
@_filters
def list_messages(app: Reference, as_json: bool, **filter: Any) -> None:
    """List messages, the newest last."""
    inbox = app.load()
    found = called(inbox, inbox.messages.find, **given(filter))
    if as_json:
        print_json(found)
        return
    print_messages(found, empty="no messages match; --since 30d also finds older ones")
    if filter["state"] == "quarantined":
        note(
            "deliveries without a valid id are shown by: "
            "oncebox dead-letters APP --list --state quarantined"
        )


def print_messages(found: Sequence[MessageSummary], *, empty: str) -> None:
    """Print a table of messages."""
    print_table(
        ("received", "state", "type", "id", "key", "attempts #", "reason"),
        [
            (
                *(m.received_at, styled_state(m.state), m.type, m.message_id, m.key),
                *(m.attempts, _reason(m)),
            )
            for m in found
        ],
        empty=empty,
        wraps="reason",
    )


def print_examples(inbox: Inbox, count: int, filter: dict[str, Any]) -> None:
    """Print some of the messages that a command will change."""
    if not count:
        return
    found = called(inbox, inbox.messages.find, limit=EXAMPLES, **{"since": None, **filter})
    print_messages(found, empty="")
    if count > len(found):
        print_line(f"... and {count - len(found):,} more")


def _reason(message: MessageSummary) -> str:
    error = (message.last_error or "").splitlines()[:1]
    return ": ".join(filter(None, (message.reason, *error)))


@click.command()
@app_argument
@click.option("--follow", "-f", is_flag=True, help="Also print new messages, until Ctrl-C.")
@_filters
def tail(app: Reference, as_json: bool, follow: bool, **filter: Any) -> None:
    """Print the newest messages, one per line.

    A line has the time of arrival, the state, type, id, key and reason.
    """
    inbox = app.load()
    wanted = given(filter)
    while True:
        found = called(inbox, inbox.messages.find, **wanted)
        for message in found:
            print_json(message) if as_json else print_line(_line(message))
        if not follow:
            return
        wanted["after"] = found[-1].seq if found else wanted.get("after", 0)
        try:
            time.sleep(0.5 if len(found) < wanted["limit"] else 0)
        except KeyboardInterrupt:
            return


def _line(message: MessageSummary) -> Text:
    values = (message.type, message.message_id, message.key or "", _reason(message))
    rest = GAP.join(printable(value).replace("\n", "\\n") for value in values)
    state = styled_state(message.state)
    state.pad_right(max(0, 11 - len(state)))
    line = Text.assemble(text(message.received_at), GAP, state, GAP, rest)
    line.rstrip()
    return line
