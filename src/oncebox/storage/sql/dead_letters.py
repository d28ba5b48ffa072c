"""Reading dead letters; shared by the SQL stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncebox.model.dead_letter import DeadLetter
from oncebox.model.filters import DeadLetterFilter, as_list
from oncebox.model.inspection import DeadLetterGroup
from oncebox.storage.contract import Connection
from oncebox.storage.sql import rows
from oncebox.storage.sql.dialect import Dialect
from oncebox.storage.steps import Steps


class SqlDeadLetters(Dialect):
    """Find, group and count dead letters."""

    def newest_dead_letter(self, connection: Connection, consumer: str) -> Steps[int]:
        """The id of the newest dead letter; 0 if there is none."""
        found = yield from connection.fetch(self._sql["newest_dead_letter"], {"consumer": consumer})
        return int(found[0][0])

    def find_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        filter: DeadLetterFilter,
        *,
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        limit: int,
        after: int = 0,
        up_to: int | None = None,
    ) -> Steps[list[DeadLetter]]:
        """Dead letters and quarantined deliveries that match, ordered by id."""
        sql, params = self._matching(consumer, filter, "find_dead_letters")
        more = {
            "ids": None if ids is None else self._list(list(ids)),
            "keys": None if keys is None else self._list(list(keys)),
            "limit": limit,
            "after": after,
            "up_to": rows.LAST if up_to is None else up_to,
        }
        found = yield from connection.fetch(sql, {**params, **more})
        return [self._dead_letter(row) for row in found]

    def dead_letter_groups(
        self,
        connection: Connection,
        consumer: str,
        filter: DeadLetterFilter,
        *,
        ids: Sequence[int] | None = None,
        limit: int,
    ) -> Steps[list[DeadLetterGroup]]:
        """Counts of matching dead letters by state, reason, error and type, the largest first."""
        sql, params = self._matching(consumer, filter, "dead_letter_groups")
        more = {"ids": None if ids is None else self._list(list(ids)), "limit": limit}
        found = yield from connection.fetch(sql, {**params, **more})
        return [self._group(row) for row in found]

    def fingerprints(
        self, connection: Connection, consumer: str, prefix: str, *, limit: int
    ) -> Steps[list[tuple[str, str | None]]]:
        """The fingerprints that begin with a prefix, and one error of each."""
        params = {"consumer": consumer, "prefix": prefix, "limit": limit}
        found = yield from connection.fetch(self._sql["fingerprints"], params)
        return [(fingerprint, error) for fingerprint, error in found]

    def _matching(
        self, consumer: str, filter: DeadLetterFilter, statement: str
    ) -> tuple[str, dict[str, Any]]:
        """A statement about the dead letters that match a filter, and the filter's parameters."""
        ids = filter.get("message_id")
        texts = ("state", "reason", "type", "key", "origin", "fingerprint")
        params = {
            "consumer": consumer,
            **{name: filter.get(name) for name in texts},
            "message_ids": None if ids is None else self._list(as_list(ids)),
            "since": self._time_param(filter.get("since")),
            "until": self._time_param(filter.get("until")),
        }
        return self._sql[statement].replace("MATCHING", self._sql["matching_dead_letters"]), params

    def _group(self, row: Sequence[Any]) -> DeadLetterGroup:
        values = dict(zip(DeadLetterGroup.__struct_fields__, row, strict=True))
        return DeadLetterGroup(**{**values, "dead_at": self._moment(values["dead_at"])})

    def _dead_letter(self, row: Sequence[Any]) -> DeadLetter:
        """A dead letter of a row with the columns of find_dead_letters."""
        *common, occurred_at, attempts, crashes, replay, error, fingerprint, dead_at = row
        tail = (attempts, crashes, replay, error, fingerprint, self._moment(dead_at))
        return rows.dead_letter((*common, self._moment(occurred_at), *tail))
