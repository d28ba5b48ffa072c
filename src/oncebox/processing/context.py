"""Context: the consumer, store, database and policies that the operations of an inbox share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from oncebox.model.identity.rules import CustomIdentity, Identity
from oncebox.model.retention import Retention
from oncebox.model.sequencing import Gaps
from oncebox.storage.contract import Store
from oncebox.storage.drivers.contract import Database
from oncebox.storage.drivers.transactions import read, run_transaction
from oncebox.storage.steps import Steps

T = TypeVar("T")


class Context(msgspec.Struct, frozen=True):
    """What the operations of one inbox share."""

    consumer: str
    store: Store
    identity: Identity | CustomIdentity
    retention: Retention | None
    gaps: Gaps
    keep_payload: bool
    open: Callable[[bool], Steps[Database]]
    """Opens the database, for sync or async use."""

    def read(
        self, is_async: bool, method: Callable[..., Steps[T]], *args: Any, **kw: Any
    ) -> Steps[T]:
        """Call a method of the store that only reads, for this consumer."""
        database = yield from self.open(is_async)
        body = partial(_call, method, self.consumer, args, kw)
        return (yield from read(database, body))

    def write(
        self, is_async: bool, method: Callable[..., Steps[T]], *args: Any, **kw: Any
    ) -> Steps[T]:
        """Call a method of the store for this consumer, and commit."""
        database = yield from self.open(is_async)
        body = partial(_call, method, self.consumer, args, kw)
        return (yield from run_transaction(database, body))


def _call(
    method: Callable[..., Steps[T]],
    consumer: str,
    args: tuple[Any, ...],
    kw: dict[str, Any],
    work: Any,
) -> Steps[T]:
    return method(work, consumer, *args, **kw)
