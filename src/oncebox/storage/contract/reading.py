"""Reading: status, lists and details for operators."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from oncebox.model.filters import MessageSearch
from oncebox.model.inspection import MessageDetail, MessageSummary, Rates, Status
from oncebox.storage.contract.connection import Connection
from oncebox.storage.steps import Steps


class ReadingStore(Protocol):
    """Status, lists and details for operators."""

    def status(self, connection: Connection, consumer: str) -> Steps[Status]:
        """Counts, rates, workers and positions of a consumer."""
        ...

    def rates(self, connection: Connection, consumer: str, *, since: datetime) -> Steps[Rates]:
        """The number of messages per outcome since a time, to the minute."""
        ...

    def messages(
        self,
        connection: Connection,
        consumer: str,
        *,
        filter: MessageSearch,
        limit: int,
        after: int | None = None,
    ) -> Steps[list[MessageSummary]]:
        """The messages that arrived last, in order of arrival; or the next ones after a seq."""
        ...

    def message(
        self, connection: Connection, consumer: str, id: str, origin: str | None
    ) -> Steps[list[MessageDetail]]:
        """Everything about the messages with an id, one per origin."""
        ...
