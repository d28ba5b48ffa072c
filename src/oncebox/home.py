"""Home: what the parts of an inbox need of it."""

from __future__ import annotations

from typing import Protocol

from oncebox.database.contract import Database
from oncebox.identity import Identity
from oncebox.retention import Retention
from oncebox.sequence import Gaps
from oncebox.store.contract import Steps, Store


class Home(Protocol):
    """An inbox, as its parts see it."""

    name: str
    identity: Identity
    retention: Retention | None
    _gaps: Gaps
    _keep_payload: bool

    def _database_for(self, is_async: bool) -> Steps[Database]: ...

    @property
    def _store(self) -> Store: ...
