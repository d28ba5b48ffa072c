"""What failures mean for the other messages of a batch."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oncebox.errors import Reject, RetryAfter, Undecodable
from oncebox.model.ordering import Ordering
from oncebox.model.outcome import Kind, Reason
from oncebox.processing.routing import read_deliveries
from support.plans import ERROR, IDENTITY, a, bad, decide, ids, kinds, plan, registry


def test_a_failed_message_blocks_the_later_messages_of_its_key() -> None:
    made = plan(a("1", "k"), a("2", "k"), a("3", "l"), a("4"))
    first, second, third, fourth = sorted(decide(made, "nnnn"), key=lambda item: ids([item]))
    assert not made.has_failures
    made.fail(first, ERROR, 0.5)
    assert made.has_failures
    assert made.unblocked([second, third, fourth]) == [third, fourth]
    made.done([third, fourth])
    assert kinds(made) == ["failed", "blocked", "done", "done"]
    entry = made.entries[0]
    assert (entry.outcome.error, entry.outcome.attempts) == (ERROR, 1)
    assert (entry.outcome.retry_in, entry.duration) == (timedelta(seconds=1), 0.5)
    assert (entry.seq, entry.blocks_key, entry.ready) == (1, False, False)


def test_a_failure_behind_an_earlier_failure_of_its_key_only_waits() -> None:
    made = plan(a("1", "k"), a("2", "k"))
    first, second = decide(made, "nn")
    made.fail(first, ERROR)
    made.fail(second, ERROR)
    assert kinds(made) == ["failed", "blocked"]
    assert (made.outcomes[1].attempts, made.outcomes[1].error) == (0, None)


def test_messages_out_of_time_are_stored_to_run_one_by_one() -> None:
    made = plan(a("1", "k"), a("2"))
    made.store_isolated(decide(made, "nn"))
    assert kinds(made) == ["stored", "stored"]
    assert all(entry.ready for entry in made.entries)


def test_a_failed_message_without_a_key_blocks_nothing() -> None:
    made = plan(a("1"), a("2"))
    first, second = decide(made, "nn")
    made.fail(first, ERROR)
    assert made.has_failures
    assert made.unblocked([second]) == [second]


def test_a_retrying_message_blocks_its_key_also_with_skip_dead() -> None:
    made = plan(a("1", "k"), a("2", "k"), ordering=Ordering.skip_dead)
    first, second = decide(made, "nn")
    made.fail(first, ERROR)
    assert made.unblocked([second]) == []


@pytest.mark.parametrize(
    ("type_", "error", "reason", "blocks_key"),
    [
        ("t", Reject("no"), Reason.rejected, True),
        ("once", ERROR, Reason.out_of_attempts, True),
        ("once", Reject("no"), Reason.rejected, True),
        ("once", RetryAfter(timedelta(1)), Reason.out_of_attempts, True),
        ("skip", ERROR, Reason.out_of_attempts, False),
    ],
)
def test_a_failure_without_another_attempt_is_a_dead_letter(
    type_: str, error: Exception, reason: Reason, blocks_key: bool
) -> None:
    made = plan(a("1", "k", type_), a("2", "k"))
    first, second = decide(made, "nn")
    made.fail(first, error)
    entry = made._entries[first]
    assert (entry.outcome.kind, entry.outcome.reason) == (Kind.dead, reason)
    assert (entry.outcome.error, entry.outcome.attempts) == (error, 1)
    assert entry.blocks_key is blocks_key
    assert made.has_failures
    assert made.unblocked([second]) == ([] if blocks_key else [second])


def test_a_handler_may_name_the_time_of_its_next_attempt() -> None:
    made = plan(a("1"))
    made.fail(decide(made, "n")[0], RetryAfter(timedelta(hours=2)))
    assert made.outcomes[0].retry_in == timedelta(hours=2)


def test_in_a_batch_that_failed_before_nothing_runs() -> None:
    made = plan(a("1", "k"), a("2", "k"), a("3"), bad("4"), a("5"), failed=ERROR)
    assert decide(made, "nnnnd") == []
    assert kinds(made) == ["failed", "blocked", "failed", "dead", "duplicate"]
    assert made.outcomes[0].error is ERROR


def test_a_batch_that_must_run_isolated_is_stored() -> None:
    made = plan(a("1", "k"), a("2", "k"), bad("3"), a("4"), isolated=True)
    assert decide(made, "nnnd") == []
    assert kinds(made) == ["stored", "stored", "dead", "duplicate"]
    assert [(entry.ready, entry.seq) for entry in made.entries[:2]] == [(True, 1), (True, 2)]
    assert not made.has_failures


def test_a_failing_upcaster_makes_the_message_undecodable() -> None:
    (item,) = read_deliveries([bad("1")], IDENTITY, registry())
    assert isinstance(item.error, Undecodable)
