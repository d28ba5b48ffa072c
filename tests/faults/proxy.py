"""A TCP proxy on loopback whose connections can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Forwards connections to a server until they are cut."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._wires: list[Wire] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @classmethod
    def before(cls, url: str) -> Proxy:
        """A proxy for the server of a URL."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        return cls(parts.hostname, parts.port)

    def url(self, url: str) -> str:
        """The same URL by way of the proxy."""
        parts = urlsplit(url)
        port = self._listener.getsockname()[1]
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))

    def cut(self) -> None:
        """End all connections at once, on both sides."""
        for wire in self._live():
            wire.cut()

    def desert(self) -> None:
        """End the clients' side of all connections; the server is not notified."""
        for wire in self._live():
            wire.desert()

    def blackhole(self) -> None:
        """Keep all connections open, but pass on nothing that the server says from now on, nor
        that it closes them."""
        for wire in self._live():
            wire.silent = True

    def refuse(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _live(self) -> list[Wire]:
        with self._lock:
            return list(self._wires)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                wire = Wire(client, socket.create_connection(self._server))
                with self._lock:
                    self._wires.append(wire)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        for wire in self._live():
            wire.close()


class Wire:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.silent = False
        self._client = client
        self._server = server
        self._threads = [
            threading.Thread(target=self._upwards, daemon=True),
            threading.Thread(target=self._downwards, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        """End both sides."""
        self.desert()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)

    def desert(self) -> None:
        """End the client's side only: the server's session continues and is not notified."""
        self.silent = True
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._server.close()

    def _upwards(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(65536):
                self._server.sendall(data)
        if not self.silent:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_WR)

    def _downwards(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(65536):
                if not self.silent:
                    self._client.sendall(data)
        if not self.silent:
            with suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)
