"""Every error that oncebox raises. A class's docstring is its default message."""

from __future__ import annotations

from datetime import timedelta


class OnceboxError(Exception):
    """something went wrong in oncebox"""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


# -- what the programmer has to mend --------------------------------------------------------------


class ConfigurationError(OnceboxError):
    """the inbox is configured in a way that cannot work"""


class HandlerError(ConfigurationError):
    """this function cannot be a handler"""


class MissingExtra(ConfigurationError):
    """an optional dependency is not installed"""

    def __init__(self, package: str, extra: str | None) -> None:
        wanted = f"'oncebox[{extra}]'" if extra else package
        super().__init__(f"{package} is not installed: pip install {wanted}")


class ForkedInbox(OnceboxError):
    """this Inbox opened its database before the process forked: create or use it after the fork"""


# -- what the operator has to mend ----------------------------------------------------------------


class SchemaError(OnceboxError):
    """the tables of oncebox do not fit this version of oncebox"""


class SchemaMissing(SchemaError):
    """the tables of oncebox are missing or too old: call inbox.migrate()"""


class CodeTooOld(SchemaError):
    """the tables of oncebox no longer serve this version of oncebox: upgrade oncebox"""


class DatabaseUnavailable(OnceboxError):
    """the database cannot be reached: nothing was committed, so settle nothing"""


class ArchiveError(OnceboxError):
    """the archive cannot be read or written"""


class NotFound(OnceboxError):
    """there is nothing of that name or number"""


# -- what a claim may answer instead of new or duplicate ------------------------------------------


class ClaimError(OnceboxError):
    """the message cannot be claimed"""


class NotInTransaction(ClaimError):
    """claim() needs an open transaction, and the connection is in autocommit mode: begin one first
    (BEGIN, or `with connection.transaction():`)"""


class SnapshotRisk(ClaimError):
    """claim() at REPEATABLE READ or SERIALIZABLE may fail with a serialization error for which the
    whole transaction has to be run again: pass accept_retries=True if your loop does that"""


class ContentMismatch(ClaimError):
    """this id was claimed before with other bytes"""


class TooLate(ClaimError):
    """this message is older than the records that would tell whether it is a duplicate"""


# -- what ends the work on a message --------------------------------------------------------------


class Unidentified(OnceboxError):
    """the delivery has no identity that can be trusted"""


class Undecodable(OnceboxError):
    """the payload cannot be decoded into what its handler takes"""


class UnknownType(OnceboxError):
    """no handler takes messages of this type"""


class UnknownVersion(OnceboxError):
    """no handler takes messages of this version"""


class PayloadTooLarge(OnceboxError):
    """the payload is larger than the inbox accepts"""


class TransactionLost(OnceboxError):
    """the transaction of the claim was ended by the handler: raise an exception instead, and
    oncebox rolls back"""


class GuardFailed(OnceboxError):
    """a transaction got lost, and its messages are recorded all the same: a handler committed it
    behind oncebox's back, and their work may be half done, or another consumer finished them
    meanwhile; settle nothing, and look at them by hand"""


class ProcessDied(OnceboxError):
    """the process died while it handled this message (it crashed, was killed, or ran out of
    memory), or hung for so long that others went on without it"""


class TooSlow(OnceboxError):
    """the handler took longer than transaction_timeout, and the database gave its transaction up"""


class NotOwner(OnceboxError):
    """another worker has taken over this partition: nothing was committed, and nothing is to be
    settled"""


class Conflict(OnceboxError):
    """somebody else was faster: the transaction is to be run again"""

    sqlstate = "40001"


class SwallowedError(OnceboxError):
    """the handler caught a database error that had already aborted the transaction: wrap the
    statement in tx.savepoint()"""


# -- what a handler may raise ---------------------------------------------------------------------


class Reject(OnceboxError):
    """the handler rejects this message: it becomes a dead letter without further attempts"""


class RetryAfter(OnceboxError):
    """the handler asks for another attempt at a time of its own"""

    def __init__(self, delay: timedelta, message: str | None = None) -> None:
        if not isinstance(delay, timedelta):
            raise ConfigurationError(f"RetryAfter takes a timedelta, not {delay!r}")
        super().__init__(message or f"another attempt in {delay}")
        self.delay = delay
