"""Names and unique ids of workers. Also finds out whether the process of a worker has ended."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

_HOST = socket.gethostname()


def worker_name(slot: int) -> str:
    """The name of a worker: host, PID, and a number within the process."""
    return f"{_HOST}:{os.getpid()}:{slot}"


def incarnation() -> str:
    """A unique worker id: PID namespace, start time of the process, random suffix."""
    return f"{_namespace()}.{_started(os.getpid())}.{secrets.token_hex(8)}"


def is_gone(name: str, incarnation: str) -> bool:
    """True if the process of a worker on this host has ended; False if that is unknown."""
    host, pid, _ = name.rsplit(":", 2)
    namespace, started, _ = incarnation.split(".")
    if host != _HOST or namespace != _namespace() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it exists, and belongs to another user
        pass
    return started != _started(int(pid))


def _namespace() -> str:
    """The PID namespace: two containers may have the same host name and equal PIDs."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    return ""


def _started(pid: int) -> str:
    """The start time of a process in clock ticks; "ended" for a zombie, "" if unknown."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()
        return "ended" if fields[0] in "ZX" else fields[19]
    return ""
