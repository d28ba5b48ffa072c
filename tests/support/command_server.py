"""Runs the command `oncebox` in forks of a process that has imported everything.

A fork is a process like any other: it has its own working directory, environment, standard streams
and exit code. Only the start of the interpreter and the imports, most of the time of a short
command, happen once.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = str(Path(__file__).parent.parent)
LONGEST_REQUEST = 2**20
TERMINAL = {"COLUMNS": "200", "NO_COLOR": "1"}
"""What is read when the command is imported."""
NOT_IMPORTED = ("__main__", ".contrib", ".demo", "django", "kafka", "sqlalchemy")
"""What commands import only if an application needs it."""


class CommandServer:
    """Runs commands, one at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.command_server", str(theirs.fileno())],
                env={**os.environ, **TERMINAL, "PYTHONPATH": TESTS},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        input: str | None,
        timeout: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        request = {"arguments": arguments, "folder": str(folder), "environment": dict(environment)}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            reader, writer = os.pipe()
            streams = [reader, out.fileno(), err.fileno()]
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            os.close(reader)
            with os.fdopen(writer, "w") as stdin:
                stdin.write(input or "")
            code = self._wait(timeout)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read(), err.read())

    def _wait(self, timeout: float) -> int:
        pid = int(self._socket.recv(100))
        self._socket.settimeout(timeout)
        try:
            return int(self._socket.recv(100))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            self._socket.settimeout(None)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def serve(requests: socket.socket) -> None:
    """Fork for each request: tell the process id, then the exit code."""
    while True:
        request, streams, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 3)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            become(**json.loads(request), streams=streams)
        for stream in streams:
            os.close(stream)
        requests.send(str(pid).encode())
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def become(
    arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]
) -> None:
    """Be the command, as `python -m oncebox` is; never returns."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [folder, *(path for path in sys.path[1:] if path != TESTS)]
    sys.argv = ["oncebox", *arguments]
    runpy.run_module("oncebox", run_name="__main__", alter_sys=True)
    sys.exit(0)


def import_everything() -> None:
    """Import what commands need."""
    import psycopg
    import psycopg_pool

    import oncebox

    assert psycopg
    assert psycopg_pool
    for module in pkgutil.walk_packages(oncebox.__path__, "oncebox."):
        if not any(part in module.name for part in NOT_IMPORTED):
            importlib.import_module(module.name)


if __name__ == "__main__":
    import_everything()
    serve(socket.socket(fileno=int(sys.argv[1])))
