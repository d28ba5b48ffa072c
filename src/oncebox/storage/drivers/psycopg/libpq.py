"""Connection parameters of libpq for the connections that oncebox opens."""

from __future__ import annotations

from collections.abc import Mapping

TIMEOUTS: Mapping[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""With these, the client notices a lost server after 25 seconds. The defaults of the kernel take
hours for a connection that waits, and 15 minutes for one that sends."""


def with_timeouts(given: Mapping[str, object]) -> dict[str, int]:
    """The parameters to add to those of the user, which are never changed."""
    return {name: value for name, value in TIMEOUTS.items() if name not in given}
