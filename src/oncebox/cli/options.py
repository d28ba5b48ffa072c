"""Options that several commands share; those of `run` and `worker` are in processes.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from oncebox.cli.parameters import Moment, Word
from oncebox.model.filters import REASONS

Decorator = Callable[[Any], Any]


def together(*decorators: Decorator) -> Decorator:
    """One decorator that adds several options, in this order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


id_option = click.option(
    "--id", "ids", multiple=True, metavar="ID", help="The message with this id; can be repeated."
)
number_option = click.option(
    "--number",
    "numbers",
    multiple=True,
    type=click.IntRange(1),
    metavar="NUMBER",
    help="The dead letter with this number; can be repeated.",
)
type_option = click.option("--type", metavar="TYPE", help="Messages of this type.")
key_option = click.option("--key", metavar="KEY", help="Messages of this key.")
origin_option = click.option("--origin", metavar="ORIGIN", help="Messages of this origin.")
reason_option = click.option(
    "--reason",
    type=Word(REASONS),
    metavar="REASON",
    help="Dead or quarantined for this reason, such as out_of_attempts or unknown_type.",
)
fingerprint_option = click.option(
    "--fingerprint",
    metavar="FINGERPRINT",
    help="With this error, as `oncebox dead-letters` shows it; its first characters suffice.",
)
until_option = click.option(
    "--until", type=Moment(), help="Received before this time; written as for --since."
)


def since_option(default: str | None = None) -> Decorator:
    """The option --since, with or without a default."""
    return click.option(
        "--since",
        type=Moment(),
        default=default,
        show_default=default is not None,
        help="Received at this time or later: 2026-07-14T09:30 (UTC), or 2h for 2 hours ago.",
    )


def state_option(states: Sequence[str], default: str = "") -> Decorator:
    """The option --state, for the states that a command deals with."""
    shown = f"; default: {default}" if default else ""
    return click.option("--state", type=Word(states), help=f"Messages in this state{shown}.")


def message_filters(
    states: Sequence[str], *, state: str = "", since: str | None = None
) -> Decorator:
    """The filters of commands about messages. `state` and `since` are the defaults."""
    return together(
        id_option,
        type_option,
        key_option,
        origin_option,
        state_option(states, state),
        since_option(since),
        until_option,
    )


error_filters = together(reason_option, fingerprint_option)

limit_option = click.option(
    "--limit",
    "-n",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Show at most this many.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

why_option = click.option(
    "--why", metavar="TEXT", help="The reason, for the audit log; prompted on a terminal."
)
by_option = click.option(
    "--by", metavar="NAME", envvar="ONCEBOX_BY", help="Your name; default: your user name."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")

action_options = together(why_option, by_option, dry_run_option, yes_option, json_option)
"""The options of every command that changes data."""

batch_option = click.option(
    "--batch",
    type=click.IntRange(1),
    default=100,
    envvar="ONCEBOX_BATCH",
    show_default=True,
    help="Messages per transaction.",
)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The filters that are set.

    An empty text counts: else `--type order --key "$UNSET"` would select all orders.
    """
    return {name: value for name, value in options.items() if value not in (None, ())}
