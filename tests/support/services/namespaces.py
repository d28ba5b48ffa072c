"""Namespaces of Linux: processes that count from 1, or see a disk of their own."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.services import Unavailable, last_line, skip_or_fail

AS_ROOT: list[str] = []
AS_USER = ["--user", "--map-root-user"]


def process_one() -> list[str]:
    """The command prefix under which a program is process 1; it ends with its `unshare`."""
    return room("--pid", "--fork", "--mount-proc", "--kill-child")


def room(*kinds: str) -> list[str]:
    """The command prefix that opens namespaces; skips where the kernel forbids it."""
    reason = "there is no unshare"
    for user in (AS_ROOT, AS_USER) if shutil.which("unshare") else ():
        prefix = ["unshare", *user, *kinds, "--"]
        done = subprocess.run([*prefix, "true"], capture_output=True, text=True)
        if done.returncode == 0:
            break
        reason = last_line(done.stderr)
    else:
        skip_or_fail("namespaces", Unavailable(reason))
    return prefix


@contextmanager
def disk(path: Path, size: str) -> Iterator[list[str]]:
    """A disk of a size; yields the command prefix under which it is seen at a path."""
    opened = room("--mount")
    mount = 'mount -t tmpfs -o size="$1" none "$2" && echo mounted && exec sleep infinity'
    keeper = subprocess.Popen(
        [*opened, "sh", "-c", mount, "sh", size, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert keeper.stdout is not None
    try:
        if (said := keeper.stdout.readline().strip()) != "mounted":
            skip_or_fail("namespaces", Unavailable(said))
        enter = ["--user"] if AS_USER[0] in opened else []
        # A process that enters starts in the root directory, and has to change to the disk.
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(path.parent)]
        yield ["nsenter", "--target", str(keeper.pid), *enter, "--mount", "--", *there]
    finally:
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()
