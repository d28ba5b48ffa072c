"""Look: what people want to know of an inbox."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from oncebox.database import seen
from oncebox.database.steps import arun, run
from oncebox.errors import NotFound
from oncebox.home import Home
from oncebox.store.contract import Steps
from oncebox.store.reading import DeadGroup, Detail, Rates, Seen, Status

DAY = timedelta(days=1)


class Wanted(NamedTuple):
    """Which messages are wanted."""

    limit: int
    after: int
    since: datetime | None
    state: str | None
    type: str | None
    key: str | None


class Look:
    """How an inbox is, and what is in it: `inbox.look`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def status(self) -> Status:
        """Counts, rates, workers, positions."""
        status: Status = run(self._look("status", is_async=False))
        return status

    async def astatus(self) -> Status:
        """See status()."""
        return await arun(self._look("status", is_async=True))

    def rates(self, *, since: datetime) -> Rates:
        """How many messages had which outcome since a time, by the minute."""
        rates: Rates = run(self._look("rates", is_async=False, since=since))
        return rates

    async def arates(self, *, since: datetime) -> Rates:
        """See rates()."""
        rates: Rates = await arun(self._look("rates", is_async=True, since=since))
        return rates

    def messages(
        self,
        *,
        limit: int = 50,
        after: int = 0,
        since: timedelta | None = DAY,
        state: str | None = None,
        type: str | None = None,
        key: str | None = None,
    ) -> list[Seen]:
        """Messages that arrived lately, the newest last; `after` is a seq to go on behind."""
        wanted = Wanted(limit, after, _ago(since), state, type, key)
        return run(self._look("messages", is_async=False, **wanted._asdict()))

    async def amessages(
        self,
        *,
        limit: int = 50,
        after: int = 0,
        since: timedelta | None = DAY,
        state: str | None = None,
        type: str | None = None,
        key: str | None = None,
    ) -> list[Seen]:
        """See messages()."""
        wanted = Wanted(limit, after, _ago(since), state, type, key)
        return await arun(self._look("messages", is_async=True, **wanted._asdict()))

    def message(self, id: str, *, origin: str | None = None) -> list[Detail]:
        """Everything about a message; several if more than one origin uses the id."""
        return _found(run(self._look("message", id, origin, is_async=False)), id)

    async def amessage(self, id: str, *, origin: str | None = None) -> list[Detail]:
        """See message()."""
        return _found(await arun(self._look("message", id, origin, is_async=True)), id)

    def dead_groups(self, *, limit: int = 50) -> list[DeadGroup]:
        """Dead letters by what they died of."""
        return run(self._look("dead_groups", is_async=False, limit=limit))

    async def adead_groups(self, *, limit: int = 50) -> list[DeadGroup]:
        """See dead_groups()."""
        return await arun(self._look("dead_groups", is_async=True, limit=limit))

    def _look(self, what: str, *args: Any, is_async: bool, **wanted: Any) -> Steps[Any]:
        database = yield from self._home._database_for(is_async)
        read = getattr(self._home._store, what)
        return (
            yield from seen(database, lambda work: read(work, self._home.name, *args, **wanted))
        )


def _ago(span: timedelta | None) -> datetime | None:
    return None if span is None else datetime.now(UTC) - span


def _found(details: list[Detail], id: str) -> list[Detail]:
    if not details:
        raise NotFound(f"there is no message {id!r} in this inbox")
    return details
