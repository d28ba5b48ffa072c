"""Which threads and tasks run a handler of an inbox now."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from oncebox.errors import ConfigurationError


class RunningHandlers:
    """Refuses process() inside a handler of the same inbox.

    Its transaction would be committed even if the handler fails afterwards. Threads and tasks that
    a handler starts are not refused: they may still run when the handler has returned.
    """

    def __init__(self) -> None:
        self._runners: set[Any] = set()

    def started(self, is_async: bool) -> Any:
        """Mark this thread, or this task, until ended() is called with the result."""
        runner = _runner(is_async)
        self._runners.add(runner)
        return runner

    def ended(self, runner: Any) -> None:
        """The handler has ended."""
        self._runners.discard(runner)

    def check(self, is_async: bool, call: str) -> None:
        """Raise ConfigurationError inside a handler."""
        if self._runners and _runner(is_async) in self._runners:
            raise ConfigurationError(
                f"a handler must not call {call} on its own inbox: that transaction would stay "
                "committed if the handler fails. Call it after the handler has returned"
            )


def _runner(is_async: bool) -> Any:
    return asyncio.current_task() if is_async else threading.get_ident()
