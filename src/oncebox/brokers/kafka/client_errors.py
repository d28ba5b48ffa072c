"""Classes of librdkafka's errors, and the values that their texts contain."""

from __future__ import annotations

import re
from typing import Any

from confluent_kafka import KafkaError

REBALANCE_ERRORS = {
    KafkaError._NO_OFFSET,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
}
"""Why a broker refuses offsets during a rebalance; the next reader commits them."""

ACCESS_ERRORS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
"""Errors that last until an operator grants access."""

TRUNCATION = re.compile(r"log truncation detected .* broker end offset is (\d+)", re.IGNORECASE)
"""The text is the only place where librdkafka reports the offset of a truncation."""


def error_text(error: Any) -> str:
    return error.str() if isinstance(error, KafkaError) else str(error)


def is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == KafkaError._FATAL


def truncation_offset(error: KafkaError) -> int | None:
    """Return the offset at which a log was truncated; -1 if unknown, None if it was not."""
    text = error.str()
    if "log truncation" not in text:
        return None
    found = TRUNCATION.search(text)
    return int(found[1]) if found else -1
