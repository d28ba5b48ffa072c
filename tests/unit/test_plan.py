"""What happens to each delivery of a batch."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from oncebox.errors import ConfigurationError, Reject, RetryAfter, Undecodable
from oncebox.handlers import Registry
from oncebox.identity import BusinessKey, Identity, Json
from oncebox.message import Delivery, Message
from oncebox.ordering import Order
from oncebox.outcome import Kind, Reason
from oncebox.plan import Item, Plan, cut, read, read_stored
from oncebox.retry import Retry
from oncebox.store.records import Claims, Stored

IDENTITY = Json("id", type="type", key="key", version="version")
ERROR = ValueError("bad")


def registry(*, order: Order = Order.park, retry: Retry | None = None) -> Registry:
    made = Registry(retry=retry or Retry(jitter=0), order=order, payload_limit=200)

    def handle(payload: dict[str, Any]) -> None: ...

    made.add(handle, "t", 1)
    made.add(handle, "once", 1, retry=Retry(max_attempts=1))
    made.add(handle, "skip", 1, order=Order.skip, retry=Retry(max_attempts=1))
    made.add_upcaster(lambda value: value["missing"], "t", 2)
    made.add(handle, "t", 3)
    made.ignore("ignored.*")
    return made


def a(id_: str, key: str | None = None, type_: str = "t", **more: Any) -> Delivery:
    return Delivery(json.dumps({"id": id_, "type": type_, "key": key, **more}).encode())


def bad(id_: str, key: str | None = None, type_: str = "t") -> Delivery:
    """Its upcaster fails: undecodable, with a handler of its own."""
    return a(id_, key, type_, version=2)


def plan(
    *deliveries: Delivery, order: Order = Order.park, identity: Identity = IDENTITY, **fate: Any
) -> Plan:
    items = read(deliveries, identity, registry(order=order))
    return Plan(items, order=order, chance=lambda: 0.5, **fate)


def claims(answers: str) -> Claims:
    """Sequence numbers from 1 for what is new."""
    return Claims(answers, [n if a in "nwrl" else None for n, a in enumerate(answers, start=1)])


def decide(made: Plan, answers: str) -> list[Item]:
    assert len(answers) == len(made.arrivals)
    return made.decide(claims(answers))


def ids(items: list[Item]) -> list[str]:
    return [item.message.id for item in items if item.message]


def kinds(made: Plan) -> list[str]:
    return [outcome.kind.value for outcome in made.outcomes]


# -- reading --------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_kept_with_its_error() -> None:
    deliveries = [
        a("1"),
        Delivery(b"nonsense"),
        a("2", type_="unknown"),
        a("3", version=9),
        bad("4"),
        a("5", text="x" * 300),
        a("6", type_="ignored.thing"),
    ]
    items = read(deliveries, IDENTITY, registry())
    assert [item.delivery for item in items] == deliveries
    assert [type(item.error).__name__ for item in items] == [
        "NoneType",
        "Unidentified",
        "UnknownType",
        "UnknownVersion",
        "Undecodable",
        "PayloadTooLarge",
        "NoneType",
    ]
    assert [item.ignored for item in items] == [False] * 6 + [True]
    assert [item.message is None for item in items] == [False, True] + [False] * 5


def test_another_error_of_ours_is_not_swallowed() -> None:
    class Broken(Json):
        def __call__(self, delivery: Delivery) -> Message:
            raise ConfigurationError("no such tenant")

    with pytest.raises(ConfigurationError, match="no such tenant"):
        read([a("1")], Broken("id"), registry())


def test_a_handler_that_runs_again_gets_a_fresh_payload() -> None:
    (item,) = read([a("1", lines=[1])], IDENTITY, registry())
    first = item.payload()
    first["lines"].append(2)
    second = item.payload()
    assert second["lines"] == [1]
    assert second is not first


def test_a_payload_is_decoded_ahead_of_the_first_run() -> None:
    decodings = 0

    def lift(value: Any) -> Any:
        nonlocal decodings
        decodings += 1
        return value

    made = Registry(retry=Retry(), order=Order.park, payload_limit=200)
    made.add(lambda payload: None, "t", 2)
    made.add_upcaster(lift, "t", 1)
    (item,) = read([a("1")], IDENTITY, made)
    assert decodings == 1
    item.payload()
    assert decodings == 1
    item.payload()
    assert decodings == 2


def test_a_delivery_that_goes_nowhere_has_no_payload_and_no_key() -> None:
    item = Item(a("1", "k"))
    item.decode()
    assert item.key is None


# -- what is claimed ------------------------------------------------------------------------------


def test_only_the_first_of_each_identified_id_is_claimed() -> None:
    made = plan(
        a("1"), a("2"), a("1"), Delivery(b"?"), a("3", type_="ignored.x"), a("4", type_="unknown")
    )
    assert [arrival.message.id for arrival in made.arrivals] == ["1", "2", "4"]
    assert [arrival.delivery for arrival in made.arrivals] == [
        a("1"),
        a("2"),
        a("4", type_="unknown"),
    ]


def test_the_same_id_of_another_origin_is_another_message() -> None:
    identity = Json("id", type="type", origin="from")
    made = plan(a("1", **{"from": "x"}), a("1", **{"from": "y"}), identity=identity)
    assert len(made.arrivals) == 2


def test_twins_with_the_same_bytes_are_duplicates() -> None:
    made = plan(a("1"), a("1"), a("1"))
    made.done(decide(made, "n"))
    assert kinds(made) == ["done", "duplicate", "duplicate"]


def test_a_twin_with_other_bytes_is_left_to_the_claim() -> None:
    """Only the database knows which of the two, if any, was there before."""
    made = plan(a("1", total=1), a("1", total=2), a("1", total=1))
    made.done(decide(made, "nx"))
    assert kinds(made) == ["done", "quarantined", "duplicate"]
    assert made.outcomes[1].reason is Reason.other_bytes


def test_twins_of_a_business_key_may_differ() -> None:
    made = plan(a("1", total=1), a("1", total=2), identity=BusinessKey("id", type="type"))
    made.done(decide(made, "n"))
    assert kinds(made) == ["done", "duplicate"]


# -- after the claim ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind", "reason", "ready", "seq"),
    [
        ("w", Kind.parked, None, False, 1),
        ("r", Kind.parked, None, True, 1),
        ("d", Kind.duplicate, None, False, None),
        ("x", Kind.quarantined, Reason.other_bytes, False, None),
        ("l", Kind.quarantined, Reason.too_late, False, 1),
    ],
)
def test_every_answer_but_new_settles_the_message(
    answer: str, kind: Kind, reason: Reason | None, ready: bool, seq: int | None
) -> None:
    made = plan(a("1", "k"))
    assert decide(made, answer) == []
    (entry,) = made.entries
    assert (entry.outcome.kind, entry.outcome.reason) == (kind, reason)
    assert (entry.ready, entry.seq, entry.parks) == (ready, seq, False)


def test_new_messages_run_in_key_order_and_outcomes_keep_the_arrival_order() -> None:
    made = plan(a("1", "b"), a("2", "a"), a("3", "b"), a("4"), a("5", "a"))
    runnable = decide(made, "nnnnn")
    assert ids(runnable) == ["4", "2", "5", "1", "3"]
    made.done(runnable)
    assert [o.message.id for o in made.outcomes if o.message] == ["1", "2", "3", "4", "5"]
    assert [entry.seq for entry in made.entries] == [1, 2, 3, 4, 5]


def test_ignored_and_unidentified_deliveries_are_settled_without_a_claim() -> None:
    made = plan(a("1", type_="ignored.x"), Delivery(b"?"))
    assert decide(made, "") == []
    ignored, unidentified = made.entries
    assert (ignored.outcome.kind, ignored.seq) == (Kind.ignored, None)
    assert unidentified.outcome.kind is Kind.quarantined
    assert unidentified.outcome.reason is Reason.unidentified
    assert unidentified.outcome.message is None
    assert unidentified.outcome.error is not None


@pytest.mark.parametrize(
    ("delivery", "reason"),
    [
        (bad("1", "k"), Reason.undecodable),
        (a("1", "k", version=9), Reason.unknown_version),
        (a("1", "k", text="x" * 300), Reason.too_large),
    ],
)
def test_what_is_dead_on_arrival_parks_its_key(delivery: Delivery, reason: Reason) -> None:
    made = plan(delivery, a("2", "k"), a("3", "l"))
    assert ids(decide(made, "nnn")) == ["3"]
    dead, parked = made._entries[made.items[0]], made._entries[made.items[1]]
    assert (dead.outcome.kind, dead.outcome.reason) == (Kind.dead, reason)
    assert (dead.parks, dead.outcome.attempts) == (True, 0)
    assert (parked.outcome.kind, parked.ready, parked.seq) == (Kind.parked, False, 2)


def test_an_unknown_type_never_parks() -> None:
    made = plan(a("1", "k", type_="unknown"), a("2", "k"))
    made.done(decide(made, "nn"))
    assert kinds(made) == ["dead", "done"]
    assert not made.entries[0].parks


def test_a_dead_letter_without_a_key_parks_nothing() -> None:
    made = plan(bad("1"), a("2"))
    made.done(decide(made, "nn"))
    assert kinds(made) == ["dead", "done"]
    assert not made.entries[0].parks


def test_with_order_skip_a_dead_letter_parks_nothing() -> None:
    made = plan(a("1", "k", version=9), a("2", "k"), order=Order.skip)
    made.done(decide(made, "nn"))
    assert kinds(made) == ["dead", "done"]
    assert not made.entries[0].parks


def test_a_message_before_a_dead_letter_of_its_key_still_runs() -> None:
    made = plan(a("1", "k"), bad("2", "k"), a("3", "k"))
    runnable = decide(made, "nnn")
    assert ids(runnable) == ["1"]
    assert made.unheld(runnable) == runnable


def test_a_dead_letter_behind_a_waiting_key_waits_its_turn() -> None:
    made = plan(bad("1", "k"))
    decide(made, "w")
    assert kinds(made) == ["parked"]


def test_a_dead_duplicate_is_a_duplicate() -> None:
    made = plan(bad("1", "k"), a("2", "k"))
    made.done(decide(made, "dn"))
    assert kinds(made) == ["duplicate", "done"]


# -- while handlers run ---------------------------------------------------------------------------


def test_a_failed_message_holds_the_later_ones_of_its_key() -> None:
    made = plan(a("1", "k"), a("2", "k"), a("3", "l"), a("4"))
    first, second, third, fourth = sorted(decide(made, "nnnn"), key=lambda item: ids([item]))
    assert not made.has_failures
    made.fail(first, ERROR, 0.5)
    assert made.has_failures
    assert made.unheld([second, third, fourth]) == [third, fourth]
    made.done([third, fourth])
    assert kinds(made) == ["failed", "parked", "done", "done"]
    entry = made.entries[0]
    assert (entry.outcome.error, entry.outcome.attempts) == (ERROR, 1)
    assert (entry.outcome.retry_in, entry.duration) == (timedelta(seconds=1), 0.5)
    assert (entry.seq, entry.parks, entry.ready) == (1, False, False)


def test_a_failure_behind_an_earlier_failure_of_its_key_only_waits() -> None:
    made = plan(a("1", "k"), a("2", "k"))
    first, second = decide(made, "nn")
    made.fail(first, ERROR)
    made.fail(second, ERROR)
    assert kinds(made) == ["failed", "parked"]
    assert (made.outcomes[1].attempts, made.outcomes[1].error) == (0, None)


def test_messages_that_found_no_time_are_stored_to_run_one_by_one() -> None:
    made = plan(a("1", "k"), a("2"))
    made.store(decide(made, "nn"))
    assert kinds(made) == ["stored", "stored"]
    assert all(entry.ready for entry in made.entries)


def test_a_failed_message_without_a_key_holds_nothing() -> None:
    made = plan(a("1"), a("2"))
    first, second = decide(made, "nn")
    made.fail(first, ERROR)
    assert made.has_failures
    assert made.unheld([second]) == [second]


def test_a_retrying_message_holds_its_key_also_with_order_skip() -> None:
    made = plan(a("1", "k"), a("2", "k"), order=Order.skip)
    first, second = decide(made, "nn")
    made.fail(first, ERROR)
    assert made.unheld([second]) == []


@pytest.mark.parametrize(
    ("type_", "error", "reason", "parks"),
    [
        ("t", Reject("no"), Reason.rejected, True),
        ("once", ERROR, Reason.out_of_attempts, True),
        ("once", Reject("no"), Reason.rejected, True),
        ("once", RetryAfter(timedelta(1)), Reason.out_of_attempts, True),
        ("skip", ERROR, Reason.out_of_attempts, False),
    ],
)
def test_a_failure_without_another_attempt_is_a_dead_letter(
    type_: str, error: Exception, reason: Reason, parks: bool
) -> None:
    made = plan(a("1", "k", type_), a("2", "k"))
    first, second = decide(made, "nn")
    made.fail(first, error)
    entry = made._entries[first]
    assert (entry.outcome.kind, entry.outcome.reason) == (Kind.dead, reason)
    assert (entry.outcome.error, entry.outcome.attempts) == (error, 1)
    assert entry.parks is parks
    assert made.has_failures
    assert made.unheld([second]) == ([] if parks else [second])


def test_a_handler_may_name_the_time_of_its_next_attempt() -> None:
    made = plan(a("1"))
    made.fail(decide(made, "n")[0], RetryAfter(timedelta(hours=2)))
    assert made.outcomes[0].retry_in == timedelta(hours=2)


# -- the fate of a batch that could not be committed ----------------------------------------------


def test_in_a_batch_that_failed_before_nothing_runs() -> None:
    made = plan(a("1", "k"), a("2", "k"), a("3"), bad("4"), a("5"), failed=ERROR)
    assert decide(made, "nnnnd") == []
    assert kinds(made) == ["failed", "parked", "failed", "dead", "duplicate"]
    assert made.outcomes[0].error is ERROR


def test_in_a_batch_to_be_run_alone_messages_are_stored() -> None:
    made = plan(a("1", "k"), a("2", "k"), bad("3"), a("4"), alone=True)
    assert decide(made, "nnnd") == []
    assert kinds(made) == ["stored", "stored", "dead", "duplicate"]
    assert [(entry.ready, entry.seq) for entry in made.entries[:2]] == [(True, 1), (True, 2)]
    assert not made.has_failures


def test_undecodable_is_what_a_failing_upcaster_means_here() -> None:
    (item,) = read([bad("1")], IDENTITY, registry())
    assert isinstance(item.error, Undecodable)


# -- receiving ------------------------------------------------------------------------------------


def test_what_is_received_is_stored_by_the_claim_and_run_by_nobody() -> None:
    made = plan(a("1", "k"), a("2", "k"), a("3"), a("1", "k"), receiving=True)
    assert made.is_receiving
    assert decide(made, "nwr") == []
    assert kinds(made) == ["stored", "parked", "stored", "duplicate"]
    assert [entry.kept for entry in made.entries] == [True, True, True, False]
    assert not made.has_failures


def test_what_is_received_and_not_trusted_is_quarantined() -> None:
    made = plan(a("1"), a("2"), a("3"), Delivery(b"?"), a("4", type_="ignored.x"), receiving=True)
    assert decide(made, "xld") == []
    assert kinds(made) == ["quarantined", "quarantined", "duplicate", "quarantined", "ignored"]
    assert not any(entry.kept for entry in made.entries)


def test_what_is_received_is_not_decoded() -> None:
    (item,) = read([bad("1")], IDENTITY, registry(), decode=False)
    assert item.error is None
    made = Plan([item], order=Order.park, chance=lambda: 0.5, receiving=True)
    decide(made, "n")
    assert kinds(made) == ["stored"]


# -- what the broker delivers again ---------------------------------------------------------------


def again(delivery: Delivery) -> Delivery:
    return msgspec.structs.replace(delivery, redelivered=True)


def test_a_redelivered_message_is_stored_to_run_alone_and_holds_its_key() -> None:
    made = plan(a("1", "k"), again(a("2", "k")), a("3", "k"), a("4"))
    runnable = decide(made, "nnnn")
    assert ids(runnable) == ["4", "1"]
    assert made.unheld(runnable) == runnable, "what came before it runs"
    made.done(runnable)
    assert kinds(made) == ["done", "stored", "parked", "done"]
    _, stored, parked, _ = made.entries
    assert (stored.ready, stored.alone) == (True, True)
    assert (parked.ready, parked.alone) == (False, False)


@pytest.mark.parametrize(("answer", "ready"), [("w", False), ("r", True)])
def test_a_redelivered_message_waits_for_its_key_and_runs_alone(answer: str, ready: bool) -> None:
    made = plan(again(a("1", "k")))
    decide(made, answer)
    (entry,) = made.entries
    assert (entry.outcome.kind, entry.ready, entry.alone) == (Kind.parked, ready, True)


def test_a_redelivered_duplicate_is_a_duplicate() -> None:
    made = plan(again(a("1")), again(a("1")), again(a("2", type_="ignored.x")))
    decide(made, "d")
    assert kinds(made) == ["duplicate", "duplicate", "ignored"]


def test_a_redelivered_message_is_not_even_decoded() -> None:
    """Its payload may be what killed the process."""
    made = plan(again(bad("1")))
    decide(made, "n")
    assert kinds(made) == ["stored"]


# -- what had been stored -------------------------------------------------------------------------


def stored(
    id_: str, seq: int, *, key: str | None = None, lane: int = 0, type_: str = "t", **more: Any
) -> Stored:
    version = more.pop("version", 1)
    message = Message(id_, b"{}", type=type_, version=version, key=key)
    return Stored(message, Delivery(b"{}"), lane, seq, **more)


def resumed(*rows: Stored, order: Order = Order.park, **fate: Any) -> tuple[Plan, list[Item]]:
    items = read_stored(rows, registry(order=order))
    made = Plan(items, order=order, chance=lambda: 0.5, **fate)
    return made, made.resume()


def cut_ids(*rows: Stored) -> list[str]:
    return [row.message.id for row in cut(rows)]


def test_a_batch_ends_in_each_lane_before_what_runs_by_itself() -> None:
    assert cut_ids() == []
    assert cut_ids(
        stored("1", 1, lane=7),
        stored("2", 2, lane=7),
        stored("failed", 3, lane=7, attempts=1),
        stored("4", 4, lane=7),
        stored("5", 5, lane=8),
        stored("suspect", 6, lane=8, alone=True),
        stored("7", 7, lane=8),
        stored("8", 8, lane=9),
    ) == ["1", "2", "5", "8"]


@pytest.mark.parametrize("special", [{"attempts": 2}, {"alone": True}])
def test_what_failed_before_or_may_kill_runs_by_itself(special: dict[str, Any]) -> None:
    assert cut_ids(stored("1", 1, **special), stored("2", 2), stored("3", 3, lane=1)) == ["1"]


def test_a_batch_does_not_hold_a_message_of_two_replays() -> None:
    """Its lane ends before the second: what follows must not overtake it."""
    rows = [
        stored("1", 1, lane=7, replay=1),
        stored("2", 2, lane=7, replay=1),
        stored("3", 3, lane=7, replay=2),
        stored("1", 4, lane=7, replay=2),
        stored("4", 5, lane=7, replay=2),
        stored("5", 6, lane=7),
        stored("6", 7, lane=8, replay=2),
        stored("7", 8, lane=8, replay=1),
        stored("6", 9, lane=8, replay=3),
        stored("8", 10, lane=8),
    ]
    assert [row.seq for row in cut(rows)] == [1, 2, 3, 7, 8]
    assert [row.seq for row in cut(rows[3:])] == [4, 5, 6, 7, 8]


def test_in_a_batch_a_message_that_was_left_out_may_come_in_another_lane() -> None:
    rows = [
        stored("failed", 1, lane=8, attempts=1),
        stored("1", 2, lane=7, replay=1),
        stored("suspect", 3, lane=7, replay=1, alone=True),
        stored("2", 4, lane=7, replay=1),
        stored("2", 5, lane=9, replay=2),
    ]
    assert [row.seq for row in cut(rows[1:])] == [2, 5]
    assert [row.seq for row in cut(rows)] == [1]


def test_a_batch_tells_messages_by_their_origins_too() -> None:
    """Live messages are not compared: each is unique by its claim."""
    other = msgspec.structs.replace(stored("1", 2, replay=1).message, origin="elsewhere")
    rows = [
        stored("1", 1, replay=1),
        msgspec.structs.replace(stored("1", 2, replay=1), message=other),
        stored("2", 3),
        stored("2", 4),
        stored("3", 5, replay=1),
    ]
    assert [row.seq for row in cut(rows)] == [1, 2, 3, 4, 5]


def test_stored_messages_run_in_key_order_and_keep_their_numbers() -> None:
    made, runnable = resumed(stored("1", 11, key="b"), stored("2", 12, key="a"), stored("3", 13))
    assert ids(runnable) == ["3", "2", "1"]
    made.done(runnable)
    assert [(entry.seq, entry.ran) for entry in made.entries] == [
        (11, True),
        (12, True),
        (13, True),
    ]
    assert [outcome.attempts for outcome in made.outcomes] == [1, 1, 1]


def test_a_stored_message_that_runs_again_counts_on() -> None:
    made, (item,) = resumed(stored("1", 5, key="k", attempts=3))
    made.fail(item, ERROR)
    (outcome,) = made.outcomes
    assert (outcome.kind, outcome.attempts) == (Kind.failed, 4)
    assert outcome.retry_in == timedelta(seconds=8)
    made, (item,) = resumed(stored("1", 5, key="k", attempts=4))
    made.fail(item, ERROR)
    (entry,) = made.entries
    assert (entry.outcome.kind, entry.outcome.attempts, entry.parks) == (Kind.dead, 5, True)
    made, (item,) = resumed(stored("1", 5, key="k", attempts=4))
    made.done([item])
    assert made.outcomes[0].attempts == 5


def test_what_cannot_be_run_any_more_is_settled_by_resume() -> None:
    made, runnable = resumed(
        stored("1", 1, key="a", type_="gone"),
        stored("2", 2, key="a"),
        stored("3", 3, key="b", version=2),
        stored("4", 4, key="b"),
        stored("5", 5, key="c", type_="ignored.x"),
        stored("6", 6, key="c"),
    )
    assert ids(runnable) == ["2", "6"]
    made.done(runnable)
    assert kinds(made) == ["dead", "done", "dead", "parked", "ignored", "done"]
    assert [entry.parks for entry in made.entries] == [False, False, True, False, False, False]
    assert made.outcomes[0].attempts == 0


def test_a_stored_message_that_failed_before_is_failed_without_a_run() -> None:
    made, runnable = resumed(stored("1", 1, key="k"), stored("2", 2, key="k"), failed=ERROR)
    assert runnable == []
    assert kinds(made) == ["failed", "parked"]


def test_a_message_that_is_not_to_run_any_more_is_killed_in_its_key() -> None:
    made, (first, second) = resumed(
        stored("1", 1, key="k", alone=True, deaths=5, attempts=1), stored("2", 2, key="k")
    )
    made.kill(first, Reason.killed, ERROR)
    assert made.unheld([second]) == []
    entry = made.entries[0]
    assert (entry.outcome.reason, entry.outcome.attempts, entry.parks) == (Reason.killed, 1, True)
    assert not entry.ran


def test_messages_that_found_no_time_hold_what_follows_them() -> None:
    made, (first, second, third) = resumed(
        stored("1", 1, key="k"), stored("2", 2, key="k"), stored("3", 3, key="l")
    )
    made.fail(third, ERROR)
    made.store([first])
    assert made.unheld([second]) == []
    assert kinds(made) == ["stored", "parked", "failed"]
    assert (made.entries[0].ready, made.entries[0].alone) == (True, True)
