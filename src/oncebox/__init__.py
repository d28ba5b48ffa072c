"""oncebox: the transactional inbox for Python. Every message takes effect once."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from oncebox.brokers.urls import source_of
from oncebox.errors import OnceboxError, Reject, RetryAfter
from oncebox.inbox import Inbox
from oncebox.model.dead_letter import DeadLetter
from oncebox.model.identity.rules import (
    BusinessKey,
    CloudEvents,
    Coordinates,
    Debezium,
    Headers,
    Identity,
    Json,
    KafkaKey,
)
from oncebox.model.message import Delivery, Message
from oncebox.model.ordering import Ordering
from oncebox.model.outcome import Kind, Outcome, Reason
from oncebox.model.retention import Retention
from oncebox.model.retry import Retry
from oncebox.model.sequencing import Gaps
from oncebox.services import Consumer, Worker
from oncebox.storage.drivers.transaction import AsyncResult, AsyncTransaction, Result, Transaction

if TYPE_CHECKING:
    from oncebox.storage.drivers.django.database import DjangoDatabase as Django
    from oncebox.storage.drivers.sqlalchemy.database import SqlAlchemyDatabase as SqlAlchemy

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
    "Gaps",
    "Headers",
    "Identity",
    "Inbox",
    "Json",
    "KafkaKey",
    "Kind",
    "Message",
    "OnceboxError",
    "Ordering",
    "Outcome",
    "Reason",
    "Reject",
    "Result",
    "Retention",
    "Retry",
    "RetryAfter",
    "Transaction",
    "Worker",
    "source_of",
]

if find_spec("django"):
    __all__ += ["Django"]
if find_spec("sqlalchemy"):
    __all__ += ["SqlAlchemy"]


def __getattr__(name: str) -> Any:
    """Adapters with an optional dependency are imported when they are asked for."""
    from oncebox.storage.drivers.connect import adapter

    if name == "Django":
        return adapter("django").DjangoDatabase
    if name == "SqlAlchemy":
        return adapter("sqlalchemy").SqlAlchemyDatabase
    raise AttributeError(f"module 'oncebox' has no attribute {name!r}")
