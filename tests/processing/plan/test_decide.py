"""What the answers of a claim mean for a batch."""

from __future__ import annotations

import pytest

from oncebox.model.message import Delivery
from oncebox.model.ordering import Ordering
from oncebox.model.outcome import Kind, Reason
from support.plans import a, again, bad, decide, ids, kinds, plan


@pytest.mark.parametrize(
    ("answer", "kind", "reason", "ready", "seq"),
    [
        ("w", Kind.blocked, None, False, 1),
        ("r", Kind.blocked, None, True, 1),
        ("d", Kind.duplicate, None, False, None),
        ("x", Kind.quarantined, Reason.payload_mismatch, False, None),
        ("l", Kind.quarantined, Reason.too_late, False, 1),
    ],
)
def test_every_claim_result_but_new_decides_the_outcome(
    answer: str, kind: Kind, reason: Reason | None, ready: bool, seq: int | None
) -> None:
    made = plan(a("1", "k"))
    assert decide(made, answer) == []
    (entry,) = made.entries
    assert (entry.outcome.kind, entry.outcome.reason) == (kind, reason)
    assert (entry.ready, entry.seq, entry.blocks_key) == (ready, seq, False)


def test_new_messages_run_in_key_order_and_outcomes_keep_the_arrival_order() -> None:
    made = plan(a("1", "b"), a("2", "a"), a("3", "b"), a("4"), a("5", "a"))
    runnable = decide(made, "nnnnn")
    assert ids(runnable) == ["4", "2", "5", "1", "3"]
    made.done(runnable)
    assert [o.message.id for o in made.outcomes if o.message] == ["1", "2", "3", "4", "5"]
    assert [entry.seq for entry in made.entries] == [1, 2, 3, 4, 5]


def test_ignored_and_unidentified_deliveries_need_no_claim() -> None:
    made = plan(a("1", type_="ignored.x"), Delivery(b"?"))
    assert decide(made, "") == []
    ignored, missing_id = made.entries
    assert (ignored.outcome.kind, ignored.seq) == (Kind.ignored, None)
    assert missing_id.outcome.kind is Kind.quarantined
    assert missing_id.outcome.reason is Reason.missing_id
    assert missing_id.outcome.message is None
    assert missing_id.outcome.error is not None


@pytest.mark.parametrize(
    ("delivery", "reason"),
    [
        (bad("1", "k"), Reason.undecodable),
        (a("1", "k", version=9), Reason.unknown_version),
        (a("1", "k", text="x" * 300), Reason.too_large),
    ],
)
def test_a_message_that_is_dead_on_arrival_blocks_its_key(
    delivery: Delivery, reason: Reason
) -> None:
    made = plan(delivery, a("2", "k"), a("3", "l"))
    assert ids(decide(made, "nnn")) == ["3"]
    dead, blocked = made._entries[made.items[0]], made._entries[made.items[1]]
    assert (dead.outcome.kind, dead.outcome.reason) == (Kind.dead, reason)
    assert (dead.blocks_key, dead.outcome.attempts) == (True, 0)
    assert (blocked.outcome.kind, blocked.ready, blocked.seq) == (Kind.blocked, False, 2)


def test_an_unknown_type_never_blocks_its_key() -> None:
    made = plan(a("1", "k", type_="unknown"), a("2", "k"))
    made.done(decide(made, "nn"))
    assert kinds(made) == ["dead", "done"]
    assert not made.entries[0].blocks_key


def test_a_dead_letter_without_a_key_blocks_nothing() -> None:
    made = plan(bad("1"), a("2"))
    made.done(decide(made, "nn"))
    assert kinds(made) == ["dead", "done"]
    assert not made.entries[0].blocks_key


def test_with_skip_dead_a_dead_letter_blocks_nothing() -> None:
    made = plan(a("1", "k", version=9), a("2", "k"), ordering=Ordering.skip_dead)
    made.done(decide(made, "nn"))
    assert kinds(made) == ["dead", "done"]
    assert not made.entries[0].blocks_key


def test_a_message_before_a_dead_letter_of_its_key_still_runs() -> None:
    made = plan(a("1", "k"), bad("2", "k"), a("3", "k"))
    runnable = decide(made, "nnn")
    assert ids(runnable) == ["1"]
    assert made.unblocked(runnable) == runnable


def test_a_dead_letter_behind_a_waiting_key_is_stored_behind_it() -> None:
    made = plan(bad("1", "k"))
    decide(made, "w")
    assert kinds(made) == ["blocked"]


def test_a_dead_duplicate_is_a_duplicate() -> None:
    made = plan(bad("1", "k"), a("2", "k"))
    made.done(decide(made, "dn"))
    assert kinds(made) == ["duplicate", "done"]


def test_a_redelivered_message_is_stored_to_run_isolated_and_blocks_its_key() -> None:
    made = plan(a("1", "k"), again(a("2", "k")), a("3", "k"), a("4"))
    runnable = decide(made, "nnnn")
    assert ids(runnable) == ["4", "1"]
    assert made.unblocked(runnable) == runnable, "what came before it runs"
    made.done(runnable)
    assert kinds(made) == ["done", "stored", "blocked", "done"]
    _, stored, blocked, _ = made.entries
    assert (stored.ready, stored.isolated) == (True, True)
    assert (blocked.ready, blocked.isolated) == (False, False)


@pytest.mark.parametrize(("answer", "ready"), [("w", False), ("r", True)])
def test_a_redelivered_message_waits_for_its_key_and_runs_isolated(
    answer: str, ready: bool
) -> None:
    made = plan(again(a("1", "k")))
    decide(made, answer)
    (entry,) = made.entries
    assert (entry.outcome.kind, entry.ready, entry.isolated) == (Kind.blocked, ready, True)


def test_a_redelivered_duplicate_is_a_duplicate() -> None:
    made = plan(again(a("1")), again(a("1")), again(a("2", type_="ignored.x")))
    decide(made, "d")
    assert kinds(made) == ["duplicate", "duplicate", "ignored"]


def test_a_redelivered_message_is_not_decoded() -> None:
    """Its payload may be what killed the process."""
    made = plan(again(bad("1")))
    decide(made, "n")
    assert kinds(made) == ["stored"]
