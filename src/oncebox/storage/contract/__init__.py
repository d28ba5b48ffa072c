"""The contract that the store of every database fulfils.

A store holds the SQL of one database and nothing else. It does no I/O: its methods are generators
of steps over a Connection. A driver provides the connection, and a runner performs the steps.
"""

from __future__ import annotations

from typing import Protocol

from oncebox.storage.contract.claims import ClaimStore
from oncebox.storage.contract.connection import Connection, Guard, Guarded
from oncebox.storage.contract.dead_letters import DeadLetterStore
from oncebox.storage.contract.positions import PositionStore
from oncebox.storage.contract.queue import QueueStore
from oncebox.storage.contract.reading import ReadingStore
from oncebox.storage.contract.replays import ReplayStore
from oncebox.storage.contract.retention import RetentionStore
from oncebox.storage.contract.schema import SchemaStore
from oncebox.storage.contract.sequences import SequenceStore

__all__ = ["Connection", "Guard", "Guarded", "Store"]


class Store(
    ClaimStore,
    QueueStore,
    PositionStore,
    DeadLetterStore,
    RetentionStore,
    ReplayStore,
    SequenceStore,
    ReadingStore,
    SchemaStore,
    Protocol,
):
    """Everything that oncebox does in one kind of database."""

    dialect: str
    is_exclusive: bool
    """True if an open write transaction blocks all other writers. Then read before you begin one,
    and keep it short."""
    scope: str
    """Part of the name of every lock, so that two inboxes in one database never share locks."""
