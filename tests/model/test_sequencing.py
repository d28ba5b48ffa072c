"""Which messages may run where producers number the messages of a key."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox import Gaps, Inbox
from oncebox.errors import ConfigurationError, MissingId
from oncebox.model.identity.rules import (
    BusinessKey,
    CloudEvents,
    Coordinates,
    Debezium,
    Headers,
    Identity,
    Json,
    KafkaKey,
)
from oncebox.model.identity.selectors import header
from oncebox.model.message import Delivery, Message
from oncebox.model.sequencing import A_MINUTE, Admission, SequenceState, admit

quick = settings(max_examples=200, deadline=None)


def admission(known: SequenceState, *numbers: int) -> Admission:
    """What becomes of messages with these numbers; their places are 0, 1, ..."""
    return admit(known, list(enumerate(numbers)))


# -- one step -------------------------------------------------------------------------------------


def test_the_next_sequence_numbers_are_admitted_at_once() -> None:
    found = admission(SequenceState(1), 1, 2, 3)
    assert (found.next, found.admitted, found.in_order) == (4, [1, 2, 3], True)
    assert [found.late, found.taken, found.early] == [set(), set(), set()]
    assert not found.has_early


def test_an_early_sequence_number_waits() -> None:
    found = admission(SequenceState(1), 2)
    assert (found.next, found.admitted, found.early) == (1, [], {0})
    assert found.has_early
    assert found.in_order, "there is nothing to run in another order"


def test_waiting_messages_are_admitted_behind_the_missing_sequence_number() -> None:
    found = admission(SequenceState(1, [2, 3, 5]), 1)
    assert (found.next, found.admitted) == (4, [1, 2, 3])
    assert not found.in_order, "some of it did not come just now"
    assert found.early == set(), "5 is known to wait"
    assert found.has_early


def test_a_batch_out_of_order_is_put_in_order() -> None:
    found = admission(SequenceState(1), 2, 1)
    assert (found.next, found.admitted, found.in_order) == (3, [1, 2], False)
    assert not found.has_early


def test_in_order_means_the_order_of_arrival_even_with_other_messages_between() -> None:
    found = admission(SequenceState(2), 2, 7, 1, 3)
    assert (found.next, found.admitted, found.in_order) == (4, [2, 3], True)
    assert (found.late, found.early) == ({2}, {1})


def test_an_admitted_or_skipped_sequence_number_is_late() -> None:
    found = admission(SequenceState(5), 4, 0)
    assert (found.next, found.late, found.admitted) == (5, {0, 1}, [])


def test_the_first_of_two_messages_with_the_same_sequence_number_gets_it() -> None:
    found = admission(SequenceState(1, [3]), 3, 1, 1, 2)
    assert found.taken == {0, 2}
    assert (found.next, found.admitted) == (4, [1, 2, 3])


def test_nothing_is_admitted_before_the_first_sequence_number_is_known() -> None:
    found = admission(SequenceState(None), 7, 6, 7)
    assert (found.next, found.admitted, found.early, found.taken) == (None, [], {0, 1}, {2})
    assert found.late == set()


def test_waiting_messages_beyond_those_read_still_count_as_waiting() -> None:
    assert admission(SequenceState(1, [2, 3], is_cut=True), 1).has_early
    assert not admission(SequenceState(1, [2, 3]), 1).has_early


# -- any order, any batches -----------------------------------------------------------------------


class Numbering:
    """A store in memory that applies admissions. It reads at most `limit` waiting numbers."""

    def __init__(self, first: int, limit: int) -> None:
        self.next: int | None = first
        self.limit = limit
        self.waiting: dict[int, str] = {}
        self.ran: list[str] = []
        self.refused: list[str] = []

    def _known(self) -> SequenceState:
        told = sorted(self.waiting)[: self.limit]
        return SequenceState(self.next, told, len(told) < len(self.waiting))

    def arrive(self, batch: list[tuple[str, int]]) -> None:
        known = self._known()
        found = admit(known, [(place, number) for place, (_, number) in enumerate(batch)])
        refused = {*found.late, *found.taken}
        waits = {*found.early, *refused}
        assert not set(found.late) & set(found.taken)
        assert found.next == known.next + len(found.admitted)  # type: ignore[operator]
        came = [number for place, (_, number) in enumerate(batch) if place not in waits]
        assert found.in_order == (came == found.admitted)
        for place, (name, number) in enumerate(batch):
            # A number that was not told of may be taken all the same.
            if place in refused or number in self.waiting:
                self.refused.append(name)
            else:
                self.waiting[number] = name
        self._go_on(found)

    def _go_on(self, found: Admission) -> None:
        self.ran += [self.waiting.pop(number) for number in found.admitted]
        self.next = found.next
        assert found.has_early >= bool(self.waiting)

    def finish(self) -> None:
        """If more numbers waited than were read, the next ones have nothing left to wait for."""
        while self.next in self.waiting:
            self._go_on(admit(self._known(), []))


@st.composite
def _deliveries(draw: st.DrawFn) -> list[list[tuple[str, int]]]:
    """All numbers from 1 on, some of them more than once, in any order and any batches."""
    numbers = list(range(1, draw(st.integers(1, 12)) + 1))
    again = draw(st.lists(st.sampled_from(numbers), max_size=6))
    mixed = draw(st.permutations([*numbers, *again]))
    named = [(f"{place}:{number}", number) for place, number in enumerate(mixed)]
    cuts = sorted(draw(st.sets(st.integers(1, len(named) - 1)))) if len(named) > 1 else []
    return [named[a:b] for a, b in zip([0, *cuts], [*cuts, len(named)], strict=True)]


@quick
@given(_deliveries(), st.sampled_from([1, 3, 1000]))
def test_messages_are_admitted_in_sequence_order_in_any_order_of_arrival(
    batches: list[list[tuple[str, int]]], limit: int
) -> None:
    """Of each number the first message that came is admitted; nothing is lost."""
    count = Numbering(1, limit)
    first: dict[int, str] = {}
    for batch in batches:
        count.arrive(batch)
        for name, number in batch:
            first.setdefault(number, name)
    count.finish()
    assert count.ran == [first[number] for number in sorted(first)]
    everything = [name for batch in batches for name, _ in batch]
    assert sorted(count.ran + count.refused) == sorted(everything)
    assert count.waiting == {}


# -- the policy -----------------------------------------------------------------------------------


def test_gaps_are_a_value() -> None:
    assert Gaps() == A_MINUTE == Gaps(timedelta(minutes=1), "skip", 1, 1000)
    assert Gaps(first=None).first is None
    assert Gaps(first=0, longest=0).longest == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"limit": 60}, "limit must be a timedelta"),
        ({"limit": timedelta(0)}, "limit must be a timedelta"),
        ({"limit": timedelta(seconds=-1)}, "limit must be a timedelta"),
        ({"limit": timedelta.max}, "limit must be a timedelta"),
        ({"then": "go on"}, "then must be 'skip' or 'hold', got 'go on'"),
        ({"first": -1}, "first must be an integer of at least 0, got -1"),
        ({"first": "1"}, "first must be an integer of at least 0, got '1'"),
        ({"first": 2**63}, "first must be an integer of at least 0, got 9"),
        ({"first": True}, "first must be an integer of at least 0, got True"),
        ({"longest": None}, "longest must be an integer of at least 0, got None"),
        ({"longest": -1}, "longest must be an integer of at least 0, got -1"),
        ({"longest": 1.5}, "longest must be an integer of at least 0, got 1.5"),
    ],
)
def test_an_invalid_policy_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Gaps(**options)


def test_an_inbox_takes_gaps_and_nothing_else() -> None:
    with pytest.raises(ConfigurationError, match="gaps must be Gaps"):
        Inbox("billing", "sqlite:///x.db", gaps=timedelta(minutes=1))  # type: ignore[arg-type]


# -- numbers in identities ------------------------------------------------------------------------

LARGEST = 2**63 - 2

JSON = Json("id", key="key", sequence="n", epoch="era")


def body(**fields: Any) -> Delivery:
    return Delivery(json.dumps({"id": "1", "key": "k", **fields}).encode())


@pytest.mark.parametrize(
    ("value", "number"), [(1, 1), (0, 0), ("12", 12), ("007", 7), (LARGEST, LARGEST)]
)
def test_a_sequence_number_is_an_integer_or_its_digits(value: Any, number: int) -> None:
    message = JSON(body(n=value))
    assert (message.key, message.sequence, message.epoch) == ("k", number, "")


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_sequence_number_is_not_guessed(value: Any) -> None:
    with pytest.raises(MissingId, match="sequence number is missing"):
        JSON(body(n=value))
    with pytest.raises(MissingId, match="sequence number is missing"):
        JSON(body())


@pytest.mark.parametrize(
    "value",
    [True, False, -1, "-1", 1.5, 1.0, "1.5", "one", LARGEST + 1, str(LARGEST + 1), "9" * 20, [1]],
)
def test_a_sequence_that_is_not_a_number_has_no_identity(value: Any) -> None:
    with pytest.raises(MissingId, match="sequence number must be an integer"):
        JSON(body(n=value))


@pytest.mark.parametrize("key", [None, ""])
@pytest.mark.parametrize("value", [None, 3, -1, "x"])
def test_a_message_without_a_key_has_no_sequence_number(key: Any, value: Any) -> None:
    message = JSON(body(key=key, n=value, era="e"))
    assert (message.key, message.sequence, message.epoch) == (None, None, "")


@pytest.mark.parametrize(("value", "epoch"), [("a", "a"), (7, "7"), (0, "0"), ("", ""), (None, "")])
def test_an_epoch_is_text(value: Any, epoch: str) -> None:
    assert JSON(body(n=1, era=value)).epoch == epoch


@pytest.mark.parametrize("value", [True, 1.5, "e" * 256, "\0"])
def test_an_epoch_that_cannot_be_stored_has_no_identity(value: Any) -> None:
    with pytest.raises(MissingId, match="epoch"):
        JSON(body(n=1, era=value))


def test_without_a_sequence_nothing_is_numbered() -> None:
    identity = Json("id", key="key")
    assert not identity.is_sequenced
    assert identity(body(n=1)).sequence is None
    assert JSON.is_sequenced


@pytest.mark.parametrize(
    "make",
    [
        lambda **given: Identity("id", **given),
        lambda **given: Json("id", **given),
        lambda **given: Headers("id", **given),
        lambda **given: BusinessKey("id", type="type", **given),
        CloudEvents,
        Coordinates,
        KafkaKey,
        Debezium,
    ],
)
def test_an_epoch_needs_a_sequence(make: Any) -> None:
    assert make(sequence="n", epoch="era").is_sequenced
    with pytest.raises(ConfigurationError, match="epoch= needs sequence="):
        make(epoch="era")
    with pytest.raises(ConfigurationError, match="is empty"):
        make(sequence="")


def numbered(identity: Identity, delivery: Delivery) -> tuple[str | None, int | None, str]:
    message: Message = identity(delivery)
    return message.key, message.sequence, message.epoch


def test_every_identity_reads_sequence_numbers_from_its_own_fields() -> None:
    place = {"key": b"k", "coordinates": "0/1"}
    fields = Delivery(b'{"id": "1", "n": 2, "era": "e"}', **place)  # type: ignore[arg-type]
    headers = Delivery(b"{}", {"id": "1", "n": b"2", "era": b"e"}, **place)  # type: ignore[arg-type]
    given: Any = {"sequence": "n", "epoch": "era"}
    assert numbered(Json("id", **given), fields) == ("k", 2, "e")
    assert numbered(BusinessKey("id", across_types=True, **given), fields) == ("k", 2, "e")
    assert numbered(Coordinates(**given), fields) == ("k", 2, "e")
    assert numbered(KafkaKey(**given), fields) == ("k", 2, "e")
    assert numbered(Headers("id", **given), headers) == ("k", 2, "e")
    assert numbered(Debezium(**given), headers) == ("k", 2, "e")
    assert numbered(Json(header("id"), sequence=lambda _: 9), headers) == ("k", 9, "")


CLOUD = {"specversion": "1.0", "id": "1", "source": "shop", "type": "t", "partitionkey": "k"}


def test_the_sequence_number_of_a_cloud_event_is_an_extension_attribute() -> None:
    identity = CloudEvents(sequence="sequence", epoch="era")
    event = {**CLOUD, "data": {}, "sequence": "0042", "era": "e"}
    structured = Delivery(json.dumps(event).encode())
    binary = Delivery(b"{}", {f"ce-{k}": str(v) for k, v in event.items() if k != "data"})
    assert numbered(identity, structured) == ("k", 42, "e")
    assert numbered(identity, binary) == ("k", 42, "e")
    with pytest.raises(MissingId, match="sequence number is missing"):
        identity(Delivery(json.dumps({**CLOUD, "data": {}}).encode()))
    keyless = {**event, "partitionkey": None, "sequence": None}
    assert numbered(identity, Delivery(json.dumps(keyless).encode())) == (None, None, "")
