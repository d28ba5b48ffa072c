"""Inspection: the status of an inbox, and its messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from oncebox.errors import NotFound
from oncebox.model.filters import MessageSearch, checked_message_search
from oncebox.model.inspection import MessageDetail, MessageSummary, Rates, Status
from oncebox.operations.erase import Erasing
from oncebox.operations.fingerprints import full_fingerprint
from oncebox.operations.methods import async_method, sync_method
from oncebox.processing.context import Context
from oncebox.storage.steps import Steps

DAY = timedelta(days=1)


def read_status(context: Context, is_async: bool) -> Steps[Status]:
    """Counts, rates, workers and positions of an inbox."""
    return context.read(is_async, context.store.status)


def read_rates(context: Context, is_async: bool, since: datetime) -> Steps[Rates]:
    """How many messages had which outcome since a time, to the minute."""
    return context.read(is_async, context.store.rates, since=since)


class Messages(Erasing):
    """The messages of an inbox: `inbox.messages`."""

    def _find(
        self,
        is_async: bool,
        *,
        limit: int = 50,
        after: int | None = None,
        since: datetime | timedelta | None = DAY,
        until: datetime | None = None,
        state: str | Iterable[str] | None = None,
        type: str | None = None,
        key: str | None = None,
        origin: str | None = None,
        ids: Iterable[str] | None = None,
        reason: str | None = None,
        fingerprint: str | None = None,
    ) -> Steps[list[MessageSummary]]:
        """Find the messages that arrived last, in order of arrival.

        `since` and `until` limit when a message was received. `since` may also be how far back to
        look; the default is a day, None means all. With `after`, a seq, it finds the messages with
        a higher seq instead, lowest first. The first characters of a `fingerprint` suffice.
        """
        start = datetime.now(UTC) - since if isinstance(since, timedelta) else since
        search = checked_message_search(
            MessageSearch(
                ids=ids,
                origin=origin,
                type=type,
                key=key,
                since=start,
                until=until,
                state=state,
                reason=reason,
            )
        )
        search["fingerprint"] = yield from full_fingerprint(self._context, is_async, fingerprint)
        read = self._context.store.messages
        return (
            yield from self._context.read(is_async, read, filter=search, limit=limit, after=after)
        )

    find = sync_method(_find)
    afind = async_method(_find)

    def _get(
        self, is_async: bool, id: str, *, origin: str | None = None
    ) -> Steps[list[MessageDetail]]:
        """Everything about a message. Returns several if more than one origin uses the id."""
        found = yield from self._context.read(is_async, self._context.store.message, id, origin)
        if not found:
            of = "" if origin is None else f" of origin {origin!r}"
            raise NotFound(f"there is no message {id!r}{of} in this inbox")
        return found

    get = sync_method(_get)
    aget = async_method(_get)
