"""Health: two small pages for orchestrators, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from oncebox.services.supervise import Report, Supervisor


@contextmanager
def serve_health(port: int | None, supervisor: Supervisor) -> Iterator[None]:
    """Serve /live (the supervisor goes on) and /ready (every worker does, with its database)."""
    if port is None:
        yield
        return
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(supervisor))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _handler(supervisor: Supervisor) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in ("/live", "/ready"):
                self.send_error(404)
                return
            reports = supervisor.reports()
            why = [_complaint(r) for r in reports if not (r.is_ready or r.finished)]
            body = msgspec.json.encode({"ready": not why, "why": why, "workers": reports})
            # To start again would not bring a database back: we are alive.
            self.send_response(503 if why and self.path == "/ready" else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes are no news."""

    return Handler


def _complaint(report: Report) -> str:
    """Why a worker is not ready."""
    return f"{report.name} " + (
        "waits for the database" if report.is_waiting else "was not heard of yet"
    )
