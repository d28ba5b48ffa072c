"""Resequencing: claim messages that producers number, and let early ones wait for their turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from oncebox.model.sequencing import Admission, Gaps, SequenceState, admit
from oncebox.storage.contract import Store
from oncebox.storage.drivers.contract import Work
from oncebox.storage.records import (
    Arrival,
    AwaitingMessage,
    Claims,
    ClaimState,
    SequenceKey,
    SequenceMove,
)
from oncebox.storage.steps import Steps

Numbered = Mapping[SequenceKey, Sequence[tuple[int, int]]]
"""The new messages with sequence numbers: (place in the batch, number), by key and epoch."""


def claim_in_sequence(
    store: Store,
    work: Work,
    consumer: str,
    arrivals: Sequence[Arrival],
    *,
    gaps: Gaps,
    receiving: bool = False,
    keep_payload: bool = True,
    timeout: float | None = None,
) -> Steps[Claims]:
    """Claim a batch. A message that is too early for its sequence number is stored until its turn.

    With `receiving`, the other messages are stored for a worker.
    """
    has_numbers = any(arrival.message.sequence is not None for arrival in arrivals)
    claim = store.receive if receiving and not has_numbers else store.claim
    claims = yield from claim(work, consumer, arrivals, keep_payload=keep_payload, timeout=timeout)
    if not has_numbers or ClaimState.refused in claims.answers:
        return claims
    claims = yield from _admit(store, work, consumer, arrivals, claims, gaps)
    if receiving:
        yield from store.store_received(work, consumer, arrivals, claims)
    return claims


def _admit(
    store: Store,
    work: Work,
    consumer: str,
    arrivals: Sequence[Arrival],
    claims: Claims,
    gaps: Gaps,
) -> Steps[Claims]:
    """Change the states of claims by their sequence numbers. The claim holds the key locks."""
    numbered = _numbered(arrivals, claims)
    if not numbered:
        return claims
    known = yield from store.sequence_states(work, consumer, list(numbered))
    unknown = SequenceState(gaps.first)
    admissions = {
        sequence: admit(known.get(sequence, unknown), arrived)
        for sequence, arrived in numbered.items()
    }
    # If any epoch of a key must run in another order than it arrived, all new messages of the key
    # are stored instead of run.
    reordered = {sequence.key for sequence, found in admissions.items() if not found.in_order}
    states = _States(claims)
    waiting: dict[tuple[SequenceKey, int], int] = {}
    moves = []
    for sequence, found in admissions.items():
        is_reordered = sequence.key in reordered
        stored = _stored(found, numbered[sequence], is_reordered)
        waiting.update({(sequence, number): place for place, number in stored})
        states.set(found.late, ClaimState.late_sequence)
        states.set(found.taken, ClaimState.sequence_taken)
        states.set((place for place, _ in stored), ClaimState.stored)
        states.set(found.early, ClaimState.awaiting_sequence)
        if found.admitted or found.early:
            admitted = found.admitted if is_reordered else ()
            moves.append(SequenceMove(sequence, found.next, found.has_early, admitted))
    messages = [
        AwaitingMessage(arrivals[place], states.seq_of(place)) for place in waiting.values()
    ]
    taken = yield from store.store_awaiting(work, consumer, messages)
    states.set((waiting[name] for name in taken), ClaimState.sequence_taken)
    yield from store.advance_sequences(work, consumer, moves)
    return msgspec.structs.replace(claims, answers=str(states))


class _States:
    """The states of a batch's claims. A message older than the watermark stays quarantined."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._letters = list(claims.answers)
        self._too_late = {
            place for place, state in enumerate(self._letters) if state == ClaimState.too_late
        }

    def set(self, places: Iterable[int], state: str) -> None:
        for place in places:
            if place not in self._too_late:
                self._letters[place] = state

    def seq_of(self, place: int) -> int | None:
        """The seq of a claim; None for a quarantined message, which only occupies its number."""
        return None if place in self._too_late else self._claims.seqs[place]

    def __str__(self) -> str:
        return "".join(self._letters)


def _numbered(arrivals: Sequence[Arrival], claims: Claims) -> Numbered:
    found: dict[SequenceKey, list[tuple[int, int]]] = {}
    for place, (arrival, seq) in enumerate(zip(arrivals, claims.seqs, strict=True)):
        message = arrival.message
        if seq is not None and message.sequence is not None and message.key is not None:
            sequence = SequenceKey(message.key, message.epoch)
            found.setdefault(sequence, []).append((place, message.sequence))
    return found


def _stored(
    admission: Admission, arrived: Sequence[tuple[int, int]], is_reordered: bool
) -> list[tuple[int, int]]:
    """The messages of a sequence that are stored in the table of waiting messages."""
    refused = {*admission.late, *admission.taken}
    return [
        (place, number)
        for place, number in arrived
        if place not in refused and (is_reordered or place in admission.early)
    ]
