"""oncebox: the transactional inbox for Python. Every message takes effect once."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from oncebox.database.transaction import AsyncResult, AsyncTransaction, Result, Transaction
from oncebox.errors import OnceboxError, Reject, RetryAfter
from oncebox.identity import (
    BusinessKey,
    CloudEvents,
    Coordinates,
    Debezium,
    Headers,
    Identity,
    Json,
    KafkaKey,
)
from oncebox.inbox import Inbox
from oncebox.message import Delivery, Message
from oncebox.ordering import Order
from oncebox.outcome import Kind, Outcome, Reason
from oncebox.retention import Retention
from oncebox.retry import Retry
from oncebox.sequence import Gaps
from oncebox.services import Consumer, Drainer
from oncebox.sources import source_of
from oncebox.store.records import DeadLetter

if TYPE_CHECKING:
    from oncebox.database.django import DjangoDatabase as Django
    from oncebox.database.sqlalchemy import SqlAlchemyDatabase as SqlAlchemy

__version__ = "0.1.0"

__all__ = [
    "AsyncResult",
    "AsyncTransaction",
    "BusinessKey",
    "CloudEvents",
    "Consumer",
    "Coordinates",
    "DeadLetter",
    "Debezium",
    "Delivery",
    "Drainer",
    "Gaps",
    "Headers",
    "Identity",
    "Inbox",
    "Json",
    "KafkaKey",
    "Kind",
    "Message",
    "OnceboxError",
    "Order",
    "Outcome",
    "Reason",
    "Reject",
    "Result",
    "Retention",
    "Retry",
    "RetryAfter",
    "Transaction",
    "source_of",
]

if find_spec("django"):
    __all__ += ["Django"]
if find_spec("sqlalchemy"):
    __all__ += ["SqlAlchemy"]


def __getattr__(name: str) -> Any:
    """Adapters with an optional dependency are imported when they are asked for."""
    from oncebox.database import adapter

    if name == "Django":
        return adapter("django").DjangoDatabase
    if name == "SqlAlchemy":
        return adapter("sqlalchemy").SqlAlchemyDatabase
    raise AttributeError(f"module 'oncebox' has no attribute {name!r}")
