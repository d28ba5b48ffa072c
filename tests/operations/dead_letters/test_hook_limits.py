"""Which hooks are accepted."""

from __future__ import annotations

from typing import Any

import pytest

from oncebox import Inbox
from oncebox.errors import ConfigurationError
from oncebox.operations.dead_letter_hooks import Webhook, checked_on_dead, log


def tell(letter: Any) -> None: ...


async def tell_later(letter: Any) -> None: ...


def test_hooks_are_any_callable() -> None:
    assert checked_on_dead(None) == []
    assert checked_on_dead(tell) == [tell]
    assert checked_on_dead("log") == [log]
    assert checked_on_dead((tell, "log", tell_later)) == [tell, log, tell_later]
    (webhook,) = checked_on_dead("https://example.com/dead?x=1")
    assert isinstance(webhook, Webhook)


@pytest.mark.parametrize(
    "hook", ["", "print", "ftp://example.com", 7, b"log", ["log", 7], object()]
)
def test_an_ambiguous_statement_is_refused(hook: Any) -> None:
    with pytest.raises(ConfigurationError, match="on_dead takes a function with a dead letter"):
        Inbox("billing", "sqlite:///x.db", on_dead=hook)


def test_an_async_hook_is_refused_by_a_sync_drain(sqlite_url: str) -> None:
    inbox = Inbox("billing", sqlite_url, on_dead=tell_later)
    inbox.on("order")(lambda payload: None)
    inbox.migrate()
    with inbox, pytest.raises(ConfigurationError, match="is async, but this inbox is sync"):
        inbox.drain()
