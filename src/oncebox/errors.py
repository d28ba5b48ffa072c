"""The exceptions of oncebox. The docstring of a class is its default message."""

from __future__ import annotations

from datetime import timedelta


class OnceboxError(Exception):
    """an error of oncebox: the base class of all its exceptions"""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


# -- errors that the developer fixes --------------------------------------------------------------


class ConfigurationError(OnceboxError):
    """the configuration of the inbox is not valid"""


class HandlerError(ConfigurationError):
    """this function cannot be used as a handler"""


class MissingExtra(ConfigurationError):
    """an optional dependency is not installed"""

    def __init__(self, package: str, extra: str | None) -> None:
        wanted = f"'oncebox[{extra}]'" if extra else package
        super().__init__(f"{package} is not installed: pip install {wanted}")


class ForkedInbox(OnceboxError):
    """this Inbox opened its database before the process forked: create the Inbox in the child
    process"""


# -- errors that the operator fixes ---------------------------------------------------------------


class SchemaError(OnceboxError):
    """the tables of oncebox do not match this version of oncebox"""


class SchemaMissing(SchemaError):
    """the tables of oncebox are missing or too old: call inbox.migrate()"""


class CodeTooOld(SchemaError):
    """the tables of oncebox are too new for this version of oncebox: upgrade oncebox"""


class DatabaseUnavailable(OnceboxError):
    """the database cannot be reached, or every try of the transaction failed: the commit is not
    confirmed, so do not ack"""


class MissingPrivilege(OnceboxError):
    """the database role of oncebox may not execute a statement"""

    def __init__(self, error: str) -> None:
        super().__init__(
            f"{error}. Only the role that owns the tables can migrate; `oncebox sql APP --grants "
            "ROLE` prints the GRANT statements that any other role needs"
        )


class NotOwner(OnceboxError):
    """another worker has taken over this partition: nothing was committed, so do not ack"""


class Conflict(OnceboxError):
    """another transaction changed the same rows: run the transaction again"""

    sqlstate = "40001"


class ArchiveError(OnceboxError):
    """the archive cannot be read or written"""


class NotFound(OnceboxError):
    """there is no message, dead letter or replay with this id"""


# -- errors of claim() ----------------------------------------------------------------------------


class ClaimError(OnceboxError):
    """the message cannot be claimed"""


class NotInTransaction(ClaimError):
    """claim() and failed() need an open transaction, but the connection is in autocommit mode:
    begin a transaction first (BEGIN, or `with connection.transaction():`)"""


class SnapshotRisk(ClaimError):
    """claim() at REPEATABLE READ or SERIALIZABLE may fail with a serialization error, and then the
    whole transaction must run again: pass accept_retries=True if your code does that"""


class PayloadMismatch(ClaimError):
    """this id was claimed before with another payload: the producer used an id twice"""


class TooLate(ClaimError):
    """this message is older than the purged messages, so it may be a duplicate of one of them:
    check by hand whether it was processed"""


# -- errors of a single message -------------------------------------------------------------------


class MissingId(OnceboxError):
    """the id, or another field that identifies the message, is missing or not valid"""


class Undecodable(OnceboxError):
    """the payload cannot be decoded to the type of its handler"""


class UnknownType(OnceboxError):
    """no handler is registered for this type: register one with on(), or call ignore()"""


class UnknownVersion(OnceboxError):
    """no handler is registered for this version: register one with on(), or an upcaster"""


class PayloadTooLarge(OnceboxError):
    """the payload is larger than payload_limit of the inbox: raise the limit, or let the producer
    send a reference"""


class TransactionLost(OnceboxError):
    """the transaction ended before its commit: a handler must not end it; to roll back, raise an
    exception"""

    culprit: object | None = None
    """The item of the batch whose handler ended it, if that is certain."""


class TransactionEnded(TransactionLost):
    """the handler committed or rolled back the transaction of the claim, or closed its connection,
    so part of its work may be committed: raise an exception instead, and oncebox rolls back"""


class CommittedByHandler(OnceboxError):
    """a handler committed the transaction of the claim, so it is unknown how much of the work of
    its messages is done: check each message by hand, then retry or discard it"""


class ProcessCrashed(OnceboxError):
    """the worker process crashed, was killed or ran out of memory while it handled this message, or
    hung until another worker took over"""


class TooSlow(OnceboxError):
    """the handler took longer than transaction_timeout, so the database ended its transaction:
    raise transaction_timeout, or do less in one transaction"""


class SwallowedError(OnceboxError):
    """the handler caught a database error that had already aborted the transaction: put the
    statement in a `with tx.savepoint():` block"""


# -- exceptions for handlers to raise -------------------------------------------------------------


class Reject(OnceboxError):
    """the handler rejected this message: it becomes a dead letter without further attempts"""


class RetryAfter(OnceboxError):
    """the handler asks for another attempt after a delay; the current attempt counts as failed"""

    def __init__(self, delay: timedelta, message: str | None = None) -> None:
        if not isinstance(delay, timedelta):
            raise ConfigurationError(
                f"RetryAfter takes a timedelta, got {delay!r}: write timedelta(seconds=5)"
            )
        super().__init__(message or f"another attempt in {delay}")
        self.delay = delay
