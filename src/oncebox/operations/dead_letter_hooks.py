"""Hooks: who is told of dead letters. At least once each, after they are committed."""

from __future__ import annotations

import asyncio
import inspect
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec

from oncebox.errors import ConfigurationError
from oncebox.model.dead_letter import DeadLetter
from oncebox.processing import outcome_log as reports
from oncebox.storage.contract import Store
from oncebox.storage.drivers.contract import Database
from oncebox.storage.drivers.transactions import read, run_transaction
from oncebox.storage.steps import Call, Steps

Hook = Callable[[DeadLetter], Any]

AT_ONCE = 20
"""Letters that are told between two units of work."""

LEASE = 60.0
"""Seconds after which a letter is told again if its hooks did not come to their end."""

PATIENCE = 5.0
"""Seconds that a webhook has to answer."""

TURN = 1.0
"""Seconds of telling after which messages have their turn again."""


def checked_hooks(on_dead: Any) -> list[Hook]:
    """Functions, of whatever `on_dead` names. Raises ConfigurationError."""
    if on_dead is None:
        return []
    if callable(on_dead) or isinstance(on_dead, str) or not isinstance(on_dead, Iterable):
        on_dead = [on_dead]
    return [_checked(hook) for hook in on_dead]


def _checked(hook: Any) -> Hook:
    if callable(hook):
        return hook  # type: ignore[no-any-return]
    if hook == "log":
        return log
    if isinstance(hook, str) and urlsplit(hook).scheme in ("http", "https"):
        return Webhook(hook)
    raise ConfigurationError(
        f"on_dead takes a function of a dead letter, 'log', or an http(s) URL, not {hook!r}"
    )


def log(letter: DeadLetter) -> None:
    """Log a dead letter, without its payload and the text of its error."""
    reports.logger.error(
        "dead letter %d: message %r of type %r, key %r: %s",
        letter.id,
        letter.message_id,
        letter.type,
        letter.key,
        letter.reason,
        extra={"oncebox_dead_letter": letter.id},
    )


class Webhook:
    """Posts a dead letter as JSON: all that is known of it but its payload and headers."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, letter: DeadLetter) -> None:
        described = msgspec.structs.asdict(letter)
        for private in ("payload", "headers", "content_hash"):
            del described[private]
        request = urllib.request.Request(
            self._url,
            msgspec.json.encode(described),
            {"Content-Type": "application/json", "User-Agent": "oncebox"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            answer.read(1024)


class HookRunner:
    """Calls the hooks of a consumer for its new dead letters."""

    def __init__(
        self, database: Database, store: Store, consumer: str, hooks: Sequence[Hook]
    ) -> None:
        self._database = database
        self._store = store
        self._consumer = consumer
        self._hooks = hooks
        for hook in hooks:
            if _is_async(hook) and not database.is_async:
                raise ConfigurationError(f"{hook!r} of on_dead is async, and this inbox is not")

    def step(self) -> Steps[bool]:
        """Call the hooks for some letters. Returns whether there were any.

        Letters whose hooks fail are leased again later.
        """
        if not self._hooks:
            return False
        look = partial(self._store.has_unnotified, consumer=self._consumer)
        if not (yield from read(self._database, look)):
            return False
        letters = yield from run_transaction(
            self._database,
            lambda work: self._store.lease_unnotified(
                work, self._consumer, limit=AT_ONCE, lease=LEASE
            ),
        )
        told = []
        began = time.monotonic()
        for letter in letters:
            # Stop after one second or the first failing hook: hooks never delay messages.
            if time.monotonic() - began > TURN or not (yield from self._tell_one(letter)):
                break
            told.append(letter)
        if told:
            yield from run_transaction(
                self._database, lambda work: self._store.mark_notified(work, told)
            )
        return bool(letters)

    def _tell_one(self, letter: DeadLetter) -> Steps[bool]:
        for hook in self._hooks:
            try:
                yield self._call(hook, letter)
            except Exception as error:
                reports.logger.warning(
                    "%s: a hook could not be told of dead letter %d (%s); all are told again later",
                    self._consumer,
                    letter.id,
                    reports.error_name(error),
                )
                return False
        return True

    def _call(self, hook: Hook, letter: DeadLetter) -> Call:
        if not self._database.is_async or _is_async(hook):
            return partial(hook, letter)
        return partial(asyncio.to_thread, hook, letter)


def _is_async(hook: Hook) -> bool:
    called = hook if inspect.isroutine(hook) else getattr(type(hook), "__call__", hook)  # noqa: B004
    return inspect.iscoroutinefunction(called)
