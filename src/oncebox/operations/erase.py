"""Erase: delete the payload, headers and error texts of finished messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Unpack

import msgspec

from oncebox.errors import ConfigurationError, DatabaseUnavailable
from oncebox.model.filters import MessageFilter, checked_message_filter, selects_everything
from oncebox.operations.audit import audit_entry
from oncebox.operations.methods import async_method, sync_method
from oncebox.processing.context import Context
from oncebox.storage.drivers.transactions import is_lock_timeout, run_transaction
from oncebox.storage.steps import Steps

BATCH = 500
"""Messages that are erased in one transaction."""


class Erased(msgspec.Struct, frozen=True):
    """The result of an erasure."""

    done: int
    left: int
    """Messages that were not erased: they are unfinished, quarantined or part of a running replay,
    or another transaction held the lock of their key."""


class Erasing:
    """Erases messages of an inbox."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def _erase(
        self,
        is_async: bool,
        *,
        why: str,
        by: str | None = None,
        progress: Callable[[int], None] | None = None,
        **filter: Unpack[MessageFilter],
    ) -> Steps[Erased]:
        """Erase payload, headers and error texts of finished messages; their ids stay.

        The filters are those of a replay; without `state` they select messages in any state.
        Archived copies are not erased.
        """
        audit = audit_entry("erase", by, why)
        checked = _checked(filter)
        found = yield from self._find_erasable(is_async, checked)
        context, store = self._context, self._context.store
        database = yield from context.open(is_async)
        erased = 0
        for first in range(0, len(found), BATCH):
            some = found[first : first + BATCH]
            erase = partial(store.erase, consumer=context.consumer, messages=some, audit=audit)
            try:
                erased += yield from run_transaction(database, erase)
            except DatabaseUnavailable as error:
                if not is_lock_timeout(error):
                    raise
                continue  # another transaction holds the lock of one of their keys
            if progress is not None:
                progress(erased)
        left = len(found) - erased
        if checked.get("state") is None:
            left += yield from context.read(is_async, store.count_quarantined, checked)
        return Erased(erased, left)

    erase = sync_method(_erase)
    aerase = async_method(_erase)

    def _count_erasable(self, is_async: bool, **filter: Unpack[MessageFilter]) -> Steps[int]:
        """Count the messages that match and have data to erase."""
        return len((yield from self._find_erasable(is_async, _checked(filter))))

    count_erasable = sync_method(_count_erasable)
    acount_erasable = async_method(_count_erasable)

    def _find_erasable(
        self, is_async: bool, filter: MessageFilter
    ) -> Steps[list[tuple[str | None, str, str]]]:
        if selects_everything(filter):
            raise ConfigurationError(
                "erase() without a filter would erase every finished message: pass key=..., "
                "ids=..., ..."
            )
        found = yield from self._context.read(is_async, self._context.store.find_messages, filter)
        return [(key, origin, id) for key, origin, id, is_erasable in found if is_erasable]


def _checked(filter: MessageFilter) -> MessageFilter:
    """The validated filter; without a state it selects messages in any state."""
    checked = checked_message_filter(filter)
    checked["state"] = filter.get("state")
    return checked
