"""Hooks: call the on_dead hooks at least once for each dead letter, after it is committed."""

from __future__ import annotations

import asyncio
import inspect
import time
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
"""Dead letters whose hooks are called between two batches of messages."""

LEASE = 60.0
"""Seconds until the hooks of a dead letter are called again, if they did not finish."""

WEBHOOK_TIMEOUT = 5.0
"""Seconds that a webhook has to respond."""

MAX_DURATION = 1.0
"""Seconds after which the hooks pause, so that messages can run."""


def checked_on_dead(on_dead: Any) -> list[Hook]:
    """The hooks that `on_dead` names, as functions. Raises ConfigurationError."""
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
        f"on_dead takes a function with a dead letter as argument, 'log', or an http(s) URL, got "
        f"{hook!r}"
    )


def log(letter: DeadLetter) -> None:
    """Log a dead letter, without its payload and the text of its error."""
    reports.logger.error(
        "dead letter %d: message %r of type %r, key %r: %s; see `oncebox show APP --number %d`",
        letter.id,
        letter.message_id,
        letter.type,
        letter.key,
        letter.reason,
        letter.id,
        extra={"oncebox_dead_letter": letter.id},
    )


class Webhook:
    """Posts a dead letter as JSON, without its payload and headers."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, letter: DeadLetter) -> None:
        import urllib.request  # here, because few inboxes post, and it takes a while to import

        described = msgspec.structs.asdict(letter)
        for private in ("payload", "headers", "content_hash"):
            del described[private]
        request = urllib.request.Request(
            self._url,
            msgspec.json.encode(described),
            {"Content-Type": "application/json", "User-Agent": "oncebox"},
        )
        with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT) as response:
            response.read(1024)


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
                raise ConfigurationError(
                    f"on_dead hook {hook!r} is async, but this inbox is sync: use a sync function"
                )

    def step(self) -> Steps[bool]:
        """Call the hooks for some dead letters. Returns True if there were any.

        If a hook fails, all hooks of that dead letter are called again later.
        """
        if not self._hooks:
            return False
        check = partial(self._store.has_unnotified, consumer=self._consumer)
        if not (yield from read(self._database, check)):
            return False
        letters = yield from run_transaction(
            self._database,
            lambda work: self._store.lease_unnotified(
                work, self._consumer, limit=AT_ONCE, lease=LEASE
            ),
        )
        notified = []
        began = time.monotonic()
        for letter in letters:
            # Stop after one second or the first failing hook, so that hooks never delay messages.
            if time.monotonic() - began > MAX_DURATION or not (yield from self._call_hooks(letter)):
                break
            notified.append(letter)
        if notified:
            yield from run_transaction(
                self._database, lambda work: self._store.mark_notified(work, notified)
            )
        return bool(letters)

    def _call_hooks(self, letter: DeadLetter) -> Steps[bool]:
        for hook in self._hooks:
            try:
                yield self._call(hook, letter)
            except Exception as error:
                reports.logger.warning(
                    "%s: on_dead hook %s failed for dead letter %d (%s); all its hooks are called "
                    "again in about a minute",
                    self._consumer,
                    _name(hook),
                    letter.id,
                    reports.error_name(error),
                )
                return False
        return True

    def _call(self, hook: Hook, letter: DeadLetter) -> Call:
        if not self._database.is_async or _is_async(hook):
            return partial(hook, letter)
        return partial(asyncio.to_thread, hook, letter)


def _name(hook: Hook) -> str:
    """The name of a hook, for the log. Never the URL of a webhook: it may contain a secret."""
    if isinstance(hook, Webhook):
        return "webhook"
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def _is_async(hook: Hook) -> bool:
    called = hook if inspect.isroutine(hook) else getattr(type(hook), "__call__", hook)  # noqa: B004
    return inspect.iscoroutinefunction(called)
