"""The first connections of a psycopg pool that oncebox opens."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import closing
from socket import socket

import pytest

from oncebox import Inbox
from oncebox.errors import DatabaseUnavailable
from support.events import cloud_event


def test_many_first_calls_at_once_open_one_connection_beside_the_pool(
    migrated_postgres_url: str,
) -> None:
    inbox = Inbox("billing", migrated_postgres_url)

    @inbox.on("order")
    async def handle(payload: dict[str, str]) -> None: ...

    async def burst() -> list[str]:
        async with inbox:
            calls = [inbox.aprocess([cloud_event("order", {}, id=str(n))]) for n in range(250)]
            return [outcomes[0].kind.value for outcomes in await asyncio.gather(*calls)]

    assert asyncio.run(burst()) == ["done"] * 250


def test_the_first_connection_waits_as_long_as_the_url_says() -> None:
    """A server that accepts and says nothing; libpq's shortest timeout is two seconds."""
    with closing(socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        url = f"postgresql://127.0.0.1:{server.getsockname()[1]}/x?connect_timeout=7"
        inbox = Inbox("billing", url)
        waited: list[float] = []

        def connect() -> None:
            began = time.monotonic()
            with pytest.raises(DatabaseUnavailable):
                inbox.status()
            waited.append(time.monotonic() - began)

        thread = threading.Thread(target=connect)
        thread.start()
        thread.join(60)
    assert waited
    assert waited[0] > 6.5
