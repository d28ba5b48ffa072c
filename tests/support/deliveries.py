"""Hypothesis strategies: deliveries as hostile as a broker's client can hand them over."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
from hypothesis import strategies as st

from oncebox import Delivery

EXAMPLES = int(os.environ.get("ONCEBOX_FUZZ_EXAMPLES", "0"))
"""How many examples a fuzz test tries; 0: its own short number."""

_TEXTS = st.text(max_size=20) | st.sampled_from(
    ["", "\0", "a\0b", "\ud800", "\udcff", "x" * 255, "x" * 256, "ä" * 200, "null", "0", "{", '"a"']
)
_NAMES = ("id", "source", "type", "specversion", "data", "time", "partitionkey", "key", "n", "v")
_HEADER_NAMES = (
    *("ce_id", "ce_source", "ce_type", "ce_time", "ce-id", "ce-source", "ce-type", "content-type"),
    *("id", "type", "eventType", "x-death"),
)
_ZONES: st.SearchStrategy[timezone] = st.integers(-1439, 1439).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)
_TIMES = st.datetimes(
    min_value=datetime(1, 1, 1),
    max_value=datetime(9999, 12, 31, 23, 59, 59),
    timezones=st.one_of(st.none(), _ZONES),
)


def values() -> st.SearchStrategy[Any]:
    """What AMQP, Kafka, SQS and other clients put into headers, and worse; hashable."""
    return st.none() | _TEXTS | st.binary(max_size=20) | st.integers() | st.floats() | st.booleans()


def _nested() -> st.SearchStrategy[Any]:
    return st.recursive(
        values() | _TIMES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(values(), inner, max_size=3)
            | st.tuples(inner, inner)
        ),
        max_leaves=5,
    )


def _json() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    )


def _events() -> st.SearchStrategy[bytes]:
    """JSON bodies with the fields that identities read, each with any value."""
    fields = st.dictionaries(st.sampled_from(_NAMES), _json() | _TEXTS, max_size=8)
    known = st.fixed_dictionaries(
        {"id": st.sampled_from(["a", "b", "c"]), "source": st.just("shop")},
        optional={
            "type": st.sampled_from(["order", "other"]),
            "data": _json(),
            "partitionkey": st.sampled_from(["k", "l"]),
            "n": st.integers(0, 3),
        },
    )
    return (fields | known).map(_encoded)


def _encoded(fields: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(fields)
    except (UnicodeError, OverflowError):
        return repr(fields).encode("utf-8", "surrogatepass")


def deliveries() -> st.SearchStrategy[Delivery]:
    """Deliveries whose every field is arbitrary within its documented type."""
    names = st.sampled_from(_HEADER_NAMES) | values()
    made: st.SearchStrategy[Any] = st.builds(
        Delivery,
        body=_events() | st.binary(max_size=50) | st.none() | st.just(b"[" * 3000),
        headers=st.none() | st.dictionaries(names, _nested(), max_size=4),
        key=values(),
        source=_TEXTS,
        coordinates=st.none() | _TEXTS,
        timestamp=st.none() | _TIMES,
        redelivered=st.booleans(),
    )
    return made
