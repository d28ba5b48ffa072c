"""Claims in the caller's transaction; shared by the SQL stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncebox.storage.contract import Connection
from oncebox.storage.records import ClaimState
from oncebox.storage.sql.migrations import CLAIMS, SqlSchema
from oncebox.storage.steps import Steps

REFUSED = frozenset({ClaimState.refused, ClaimState.payload_mismatch, ClaimState.too_late})
"""States for which the caller gets an error. Nothing stays stored then."""


class CountsDuplicates(SqlSchema):
    """Counts the duplicates of callers' claims. New claims are counted by their inbox rows."""

    _has_counters: bool | None = None
    """True if the schema has counters; None until the first duplicate."""

    def _count_duplicates(
        self, connection: Connection, states: str, params: Mapping[str, Any]
    ) -> Steps[None]:
        duplicates = states.count(ClaimState.duplicate)
        if not duplicates or not REFUSED.isdisjoint(states):
            return
        if self._has_counters is None:
            found = yield from self.version(connection)
            self._has_counters = found is not None and found[0] > CLAIMS
        if self._has_counters:
            counted = {**params, "count": duplicates}
            yield from connection.execute(self._sql["count_duplicates"], counted)
