"""oncebox: the transactional inbox for Python. The work of each message happens once."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from oncebox.errors import OnceboxError, Reject, RetryAfter

if TYPE_CHECKING:
    from oncebox.brokers.urls import source_of
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
    from oncebox.storage.drivers.django.database import DjangoDatabase as Django
    from oncebox.storage.drivers.sqlalchemy.database import SqlAlchemyDatabase as SqlAlchemy
    from oncebox.storage.drivers.transaction import (
        AsyncResult,
        AsyncTransaction,
        Result,
        Transaction,
    )

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

_MODULES = {
    "brokers.urls": "source_of",
    "inbox": "Inbox",
    "model.dead_letter": "DeadLetter",
    "model.identity.rules": (
        "BusinessKey CloudEvents Coordinates Debezium Headers Identity Json KafkaKey"
    ),
    "model.message": "Delivery Message",
    "model.ordering": "Ordering",
    "model.outcome": "Kind Outcome Reason",
    "model.retention": "Retention",
    "model.retry": "Retry",
    "model.sequencing": "Gaps",
    "services": "Consumer Worker",
    "storage.drivers.transaction": "AsyncResult AsyncTransaction Result Transaction",
}
_ADAPTERS = {
    "Django": ("django", "DjangoDatabase"),
    "SqlAlchemy": ("sqlalchemy", "SqlAlchemyDatabase"),
}

if not TYPE_CHECKING:  # type checkers use the imports above, and find misspelled names

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, so that `import oncebox` is fast."""
        value = _import(name)
        globals()[name] = value
        return value


def _import(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"oncebox.{module}"), name)
    if name in _ADAPTERS:
        from oncebox.storage.drivers.connect import adapter

        module, attribute = _ADAPTERS[name]
        return getattr(adapter(module), attribute)
    raise AttributeError(f"module 'oncebox' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
