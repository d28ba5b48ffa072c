"""JSON output: one name per field, ids that are not rounded, times with a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec

from oncebox.cli import documents
from oncebox.model.dead_letter import DeadLetter
from oncebox.model.inspection import (
    Attempt,
    DeadLetterGroup,
    MessageDetail,
    MessageSummary,
    PartitionStatus,
    WorkerStatus,
)

NOON = datetime(2026, 7, 14, 12, tzinfo=UTC)
PARIS = NOON.astimezone(timezone(timedelta(hours=2)))
LARGE = 2**63 - 1

SUMMARY = MessageSummary(
    LARGE, "shop", "m", "t", 1, "k", "dead", "rejected", 2, PARIS, None, "E: x"
)
LETTER = DeadLetter(
    LARGE, "dead", "rejected", LARGE, "shop", "m", "t", 1, "k", True, b"\xff", b"\x01", {"h": "v"},
    "s", None, NOON, 2, 0, LARGE, "E: x", "0123456789abcdef", PARIS,
)  # fmt: skip


def as_json(value: Any) -> dict[str, Any]:
    encoded = msgspec.json.encode(documents.document(value))
    decoded: dict[str, Any] = msgspec.json.decode(encoded)
    return decoded


def test_the_same_thing_has_the_same_name_in_messages_and_dead_letters() -> None:
    detail = MessageDetail(SUMMARY, b"{}", '{"h":"v"}', "s", None, NOON, None, LARGE, [], [])
    message, letter, summary = as_json(detail), as_json(LETTER), as_json(SUMMARY)
    shared = (
        *("message_id", "dead_letter_id", "origin", "type", "version", "key", "state", "reason"),
        *("attempts", "error", "headers", "source", "coordinates", "occurred_at", "seq"),
    )
    for name in shared:
        assert message[name] == letter[name], name
    assert summary.items() <= message.items()
    assert not {"id", "letter", "last_error", "replay"} & {*message, *letter, *summary}


def test_an_id_of_64_bits_is_text() -> None:
    letter = as_json(LETTER)
    for name in ("dead_letter_id", "seq", "replay_id"):
        assert letter[name] == "9223372036854775807"
    group = as_json(DeadLetterGroup("dead", "r", "f", "t", 2, 1, LARGE, NOON, None))
    assert (group["first_dead_letter_id"], group["last_dead_letter_id"]) == ("1", str(LARGE))
    attempt = as_json(Attempt(0, 1, "done", None, 0.5, "w", NOON))
    assert (attempt["replay_id"], attempt["seconds"]) == (None, 0.5)


def test_times_are_in_utc() -> None:
    assert as_json(LETTER)["dead_at"] == "2026-07-14T12:00:00Z"
    assert as_json(SUMMARY)["received_at"] == "2026-07-14T12:00:00Z"


def test_a_payload_that_is_not_text_is_in_base64() -> None:
    letter = as_json(LETTER)
    assert ("payload" in letter, letter["payload_base64"]) == (False, "/w==")
    detail = MessageDetail(SUMMARY, "é".encode(), None, None, None, None, None, None, [], [])
    assert as_json(detail)["payload"] == "é"


def test_workers_and_partitions_use_the_words_of_the_tables() -> None:
    worker = as_json(WorkerStatus("host:1:0", 100, NOON, NOON, False, False))
    assert (worker["worker"], worker["batch"]) == ("host:1:0", 100)
    partition = as_json(
        PartitionStatus(
            "kafka:g", "t/0", 7, 3, NOON, 5, "host:1:0", NOON, 0, 0, None, None, NOON, False
        )
    )
    assert (partition["position"], partition["acked"], partition["reader"]) == (7, 5, "host:1:0")
