"""Purges in processes of their own, which kill themselves at a chosen step.

    python -m faults.purge_worker

is a fork server: it has everything imported, reads one request per line, forks a purge for each,
and says how that ended. A step is a call to the database, or one that changes files of the archive;
they are counted from where the mark is set, for nothing is changed before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from faults.child import wrap
from oncebox import Inbox, Retention
from oncebox.operations import methods, purge_pass
from oncebox.operations.archive import format as archive
from oncebox.operations.archive import location as folder
from oncebox.storage import steps
from oncebox.storage.postgres import PostgresStore
from oncebox.storage.sqlite import SqliteStore

CHANGES = ("os.mkdir", "os.rename", "os.remove")


class Steps:
    """Counts steps, and ends the process before one of them."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.count = 0
        self.has_begun = False

    def begin(self) -> None:
        self.has_begun = True

    def step(self) -> None:
        self.count += self.has_begun
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self, work: Any) -> Any:
        """As steps.run(), and every call is a step."""
        return steps.run(self._watched(work))

    def _watched(self, work: Any) -> Any:
        answer, error = None, None
        while True:
            try:
                call = work.send(answer) if error is None else work.throw(error)
            except StopIteration as stop:
                return stop.value
            self.step()
            try:
                answer, error = (yield call), None
            except BaseException as raised:
                answer, error = None, raised

    def watch_files(self, place: str) -> None:
        """Every change of a file is a step, and so are syncing it and writing to it."""

        def hook(event: str, args: tuple[Any, ...]) -> None:
            opened = event == "open" and isinstance(args[0], str) and "x" in (args[1] or "")
            if (opened or event in CHANGES) and str(args[0]).startswith(place):
                self.step()

        sys.addaudithook(hook)
        os.fsync = self._stepping(os.fsync)
        for owner, method in (
            (folder.Directory, "create"),
            (archive.Writer, "add"),
            (archive.Writer, "finish"),
        ):
            setattr(owner, method, self._stepping(getattr(owner, method)))

    def _stepping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*args: Any) -> Any:
            answer = function(*args)
            self.step()
            return answer

        return stepping


def make_inbox(url: str, place: str | None) -> Inbox:
    """The inbox of tests and purges."""
    inbox = Inbox("billing", url, retention=Retention(days=7, archive=place))

    @inbox.on("order")
    def order(payload: dict[str, Any], tx: Any) -> None:
        tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])

    return inbox


def purge(url: str, place: str | None, last: int) -> None:
    watched = Steps(last)
    setattr(methods, "run", watched.run)  # noqa: B010
    purge_pass.AT_ONCE = 2
    for store in (PostgresStore, SqliteStore):
        wrap(store, "set_watermark", before=watched.begin)
    if place is not None:
        watched.watch_files(place)
    with make_inbox(url, place) as inbox:
        inbox.purge.run()


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            try:
                purge(**json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
