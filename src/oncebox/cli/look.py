"""status, list, show, tail: looking into an inbox."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from oncebox.cli.app import Reference, app_argument, called
from oncebox.cli.asking import Span
from oncebox.cli.group import UNHEALTHY
from oncebox.cli.output import (
    age,
    console,
    json_option,
    number,
    print_json,
    print_table,
    printable,
    text,
)
from oncebox.retention import Retention
from oncebox.store.reading import Detail, PartSeen, Seen, Status

STATES = ("pending", "early", "done", "dead", "quarantined", "discarded")


@click.command()
@app_argument
@json_option
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 4 if a drainer or reader is overdue or dead letters hold keys.",
)
def status(app: Reference, as_json: bool, check: bool) -> None:
    """Show what waits, what died, how fast it goes, and who is at work."""
    inbox = app.load()
    found: Status = called(inbox, inbox.look.status)
    if as_json:
        print_json(found)
    else:
        _print_status(found, inbox.retention)
    overdue = any(worker.is_overdue for worker in found.workers)
    overdue = overdue or any(part.is_overdue for part in found.parts)
    if check and (overdue or any(group.keys for group in found.dead)):
        raise SystemExit(UNHEALTHY)


def _print_status(found: Status, retention: Retention | None) -> None:
    console.print(f"[bold]{text(found.consumer)}[/bold]")
    _print_waiting(found)
    console.print(f"retention {_kept(found, retention)}")
    console.print()
    print_table(
        ("last", "received #", "done #", "duplicates absorbed #", "failed #", "dead #"),
        [
            (f"{minutes} min", r.received, r.done, r.duplicate, r.failed, r.dead + r.quarantined)
            for minutes, r in found.rates.items()
        ],
        empty="",
    )
    console.print()
    print_table(
        ("drainer", "batch #", "since", "last seen"),
        [
            (w.name, w.batch, w.started_at, f"{age(w.beat_at)} ago" + " OVERDUE" * w.is_overdue)
            for w in found.workers
        ],
        empty="no drainer is at work",
    )
    if found.parts:
        console.print()
        _print_parts(found.parts)


def _kept(found: Status, retention: Retention | None) -> str:
    if retention is None:
        return "none: nothing is ever forgotten"
    words = [f"{retention.days:g} days"]
    if found.forgotten_before is not None:
        words.append(f"forgotten is what came before {text(found.forgotten_before)}")
    if found.hold_until is not None:
        words.append(f"nothing is forgotten until {text(found.hold_until)}: something was restored")
    looked = (
        f"looked at {age(found.kept_house_at)} ago" if found.kept_house_at else "never looked at"
    )
    return "; ".join([*words, looked])


def _print_waiting(found: Status) -> None:
    waiting = f"{number(found.ready)} ready, {number(found.retrying)} retrying, "
    waiting += f"{number(found.parked)} parked"
    if found.alone:
        waiting += f", {number(found.alone)} to be run alone"
    console.print(f"pending   {waiting}; the oldest for {age(found.oldest_pending)}")
    if found.gaps:
        early = f"{number(found.early)} wait for numbers of {number(found.gaps)} keys"
        console.print(f"early     {early}; the oldest for {age(found.oldest_gap)}")
    for group in found.dead:
        keys = f", {group.keys:,} keys wait for them" if group.keys else ""
        console.print(f"{group.state:<9} {number(group.count)} {group.reason}{keys}", style="red")


def _print_parts(parts: Sequence[PartSeen]) -> None:
    print_table(
        ("source", "part", "position #", "settled #", "lag #", "reader", "for", "moved"),
        [
            (
                *(p.source, p.part, p.next, p.settled, p.lag, p.owner),
                age(p.owned_at) + " OVERDUE" * p.is_overdue,
                f"{age(p.moved_at)} ago",
            )
            for p in parts
        ],
        empty="",
    )


_filters = (
    click.option("--state", type=click.Choice(STATES), help="Only messages in this state."),
    click.option("--type", "type_", metavar="TYPE", help="Only messages of this type."),
    click.option("--key", help="Only messages of this key."),
    click.option("--since", type=Span(), default="1d", help="How far back.", show_default=True),
    click.option("--limit", "-n", type=click.IntRange(1), default=50, show_default=True),
)


def _filtered(command: Any) -> Any:
    for option in reversed(_filters):
        command = option(command)
    return command


@click.command("list")
@app_argument
@json_option
@_filtered
def list_messages(app: Reference, as_json: bool, type_: str | None, **wanted: Any) -> None:
    """List messages, the newest last."""
    inbox = app.load()
    found = called(inbox, inbox.look.messages, type=type_, **wanted)
    if as_json:
        print_json(found)
    else:
        _print_messages(found)
    if wanted["state"] == "quarantined":
        hint = (
            "deliveries that cannot be told are shown by: oncebox dead --list --state quarantined"
        )
        click.secho(hint, dim=True, err=True)


def _print_messages(found: list[Seen]) -> None:
    print_table(
        ("received", "state", "type", "id", "key", "runs #", "why"),
        [(m.received_at, m.state, m.type, m.message_id, m.key, m.attempts, _why(m)) for m in found],
        empty="no message matches",
    )


def _why(message: Seen) -> str:
    return ": ".join(filter(None, (message.reason, (message.last_error or "")[:80])))


@click.command()
@app_argument
@click.argument("id")
@click.option("--origin", help="Only the message of this origin.")
@json_option
def show(app: Reference, id: str, origin: str | None, as_json: bool) -> None:
    """Show everything about a message."""
    inbox = app.load()
    found = called(inbox, inbox.look.message, id, origin=origin)
    if as_json:
        print_json(found)
        return
    for detail in found:
        _print_detail(detail)


def _print_detail(detail: Detail) -> None:
    message = detail.message
    for name, value in (
        ("id", message.message_id),
        ("origin", message.origin),
        ("type", f"{message.type} (version {message.version})"),
        ("key", message.key),
        ("state", message.state + (f" ({message.reason})" if message.reason else "")),
        ("waits", detail.waits),
        ("letter", detail.letter),
        ("error", message.last_error),
        ("received", message.received_at),
        ("processed", message.processed_at),
        ("from", f"{detail.source or ''} {detail.coordinates or ''}".strip()),
        ("headers", detail.headers),
        ("payload", _payload(detail.payload)),
    ):
        if value is not None:
            console.print(f"[bold]{name:<10}[/bold] {text(value)}")
    for attempt in detail.attempts:
        lasted = "" if attempt.duration is None else f" after {attempt.duration:.3f} s"
        console.print(
            f"\n[bold]run {attempt.number}[/bold]{_of(attempt.replay)} {attempt.outcome}{lasted}, "
            f"{text(attempt.ended_at)}, {text(attempt.worker)}"
        )
        if attempt.error:
            console.print(text(attempt.error.rstrip()))
    for action in detail.actions:
        console.print(
            f"\n[bold]{action.act}[/bold]{_of(action.replay)} by {text(action.by)}, "
            f"{text(action.at)}: {text(action.why)}"
        )
    console.print()


def _of(replay: int) -> str:
    return f" of replay {replay}" if replay else ""


def _payload(payload: bytes | None) -> str:
    if payload is None:
        return "(not kept)"
    shown = payload[:2_000].decode("utf-8", "backslashreplace")
    return printable(shown) + (f" ... ({len(payload):,} bytes)" if len(payload) > 2_000 else "")


@click.command()
@app_argument
@json_option
@click.option("--follow", "-f", is_flag=True, help="Go on as messages arrive, until Ctrl-C.")
@_filtered
def tail(app: Reference, as_json: bool, follow: bool, type_: str | None, **wanted: Any) -> None:
    """Show the newest messages; with -f, also those that arrive."""
    inbox = app.load()
    after = 0
    while True:
        found = called(inbox, inbox.look.messages, type=type_, after=after, **wanted)
        for message in found:
            if as_json:
                print_json(message)
            else:
                click.echo(
                    f"{text(message.received_at)}  {message.state:<11} "
                    f"{printable(message.type)}  {printable(message.message_id)}  "
                    f"{printable(message.key or '')}  {printable(_why(message))}".rstrip()
                )
            after = max(after, message.seq)
        if not follow:
            return
        try:
            time.sleep(0.5)
        except KeyboardInterrupt:
            return
