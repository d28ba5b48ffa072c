"""Real servers for the tests: started lazily, on loopback, gone when the tests are."""

import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

PATIENCE = 60.0


@dataclass(frozen=True)
class Service:
    """One line of the table that closes a run: what the tests ran against."""

    name: str
    version: str
    origin: str
    fidelity: str


class Unavailable(Exception):
    """no such server can be had here"""


def required(name: str) -> bool:
    """True if ONCEBOX_TEST_REQUIRE, a comma-separated list, names this service."""
    return name in os.environ.get("ONCEBOX_TEST_REQUIRE", "").replace(" ", "").split(",")


def skip_or_fail(name: str, reason: Unavailable) -> NoReturn:
    """Skip for want of a service, or fail where the service is required."""
    if required(name):
        message = f"{name} is required by ONCEBOX_TEST_REQUIRE: {reason}"
        raise pytest.fail.Exception(message, pytrace=False) from None
    pytest.skip(f"{name}: {reason}")


def cache() -> Path:
    """The folder for downloads, outside the repository and kept between runs."""
    home = os.environ.get("HOME")
    default = Path(home) / ".cache" if home else Path(tempfile.gettempdir())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or default) / "oncebox-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other test processes out; the kernel releases the lock of a dead one."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def dies_with_us() -> list[str]:
    """The command prefix that ends a server with the tests, even if those are killed."""
    return ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


def dead(process: psutil.Process) -> bool:
    """True if a process has ended, even if its parent has not reaped it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def free_port() -> int:
    """A loopback port that no process listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    """Check again and again until the condition holds. Raises TimeoutError when patience ends.

    A check that takes longer is repeated less often, so that waiting costs little.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"{complaint} after {PATIENCE:.0f} s")
        time.sleep(min(max(0.005, 4 * (now - began)), 0.2))


def last_line(output: str) -> str:
    """What a failed program said last, which is where they name the cause."""
    return output.strip().rpartition("\n")[2]


def read_lines(path: Path) -> list[str]:
    """The lines of a file that may not exist yet."""
    try:
        return path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
