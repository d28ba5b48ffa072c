"""Liveness: what a worker is called, and whether the process behind one is gone."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

_HOST = socket.gethostname()


def worker_name(slot: int) -> str:
    """Machine, process, and a number within it."""
    return f"{_HOST}:{os.getpid()}:{slot}"


def incarnation() -> str:
    """What no other worker has: where its process number means something, when the process began,
    and chance."""
    return f"{_namespace()}.{_began(os.getpid())}.{secrets.token_hex(8)}"


def is_gone(name: str, incarnation: str) -> bool:
    """Whether the process of a worker on this machine has ended; False where that is unknown."""
    host, pid, _ = name.rsplit(":", 2)
    namespace, began, _ = incarnation.split(".")
    if host != _HOST or namespace != _namespace() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is there, and somebody else's
        pass
    return began != _began(int(pid))


def _namespace() -> str:
    """Two containers may have one name, and number their processes each for itself."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    return ""


def _began(pid: int) -> str:
    """When a process began, as far as the system tells; "ended" if only its parent must look."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()
        return "ended" if fields[0] in "ZX" else fields[19]
    return ""
