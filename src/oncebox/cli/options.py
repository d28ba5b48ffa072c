"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from oncebox.cli.prompts import Moment

Decorator = Callable[[Any], Any]


def together(*decorators: Decorator) -> Decorator:
    """One decorator that adds several options, in this order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


message_filters = together(
    click.option("--id", "ids", multiple=True, metavar="ID", help="This message; can be repeated."),
    click.option("--type", metavar="TYPE", help="Messages of this type."),
    click.option("--key", help="Messages of this key."),
    click.option("--origin", help="Messages of this origin."),
    click.option(
        "--since", type=Moment(), help="Received since: 2026-07-14T09:30, or 2h for 2h ago."
    ),
    click.option("--until", type=Moment(), help="Received before."),
)

batch_option = click.option(
    "--batch",
    type=click.IntRange(1),
    default=100,
    envvar="ONCEBOX_BATCH",
    show_default=True,
    help="Messages per transaction.",
)
