"""Health checks for orchestrators: an HTTP server, on 127.0.0.1 by default."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from oncebox.errors import ConfigurationError
from oncebox.services.supervisor import Report, Supervisor


@contextmanager
def serve_health(address: tuple[str, int] | None, supervisor: Supervisor) -> Iterator[str | None]:
    """Serve /live (the supervisor runs) and /ready (no worker waits for database or source).

    Yields the URL, or None without an address. Raises ConfigurationError if the port is taken.
    """
    if address is None:
        yield None
        return
    try:
        server = _server_class(address[0])(address, _handler(supervisor))
    except OSError as error:
        raise ConfigurationError(
            f"cannot serve health checks on {_url(address)}: {error.strerror or error}. Choose "
            "another address with --health"
        ) from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield _url(server.server_address[:2]) + "/ready"
    finally:
        server.shutdown()
        server.server_close()


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server


def _url(address: Any) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"


def _handler(supervisor: Supervisor) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in ("/live", "/ready"):
                self.send_error(404)
                return
            reports = supervisor.reports()
            why = [_why_not_ready(r) for r in reports if not (r.is_ready or r.finished)]
            body = msgspec.json.encode({"ready": not why, "why": why, "workers": reports})
            # /live stays 200: a restart would not bring a database or a broker back.
            self.send_response(503 if why and self.path == "/ready" else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log probes."""

    return Handler


def _why_not_ready(report: Report) -> str:
    """The reason why a worker is not ready."""
    why = f"waits for {report.waits_for}" if report.waits_for else "has sent no heartbeat yet"
    return f"{report.name} {why}"
