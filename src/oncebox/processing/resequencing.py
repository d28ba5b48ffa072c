"""Sequencing: claims in front of which numbers are looked at, where producers number messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from oncebox.model.sequencing import Admission, Gaps, Numbers, admit
from oncebox.storage.contract import Store
from oncebox.storage.drivers.contract import Work
from oncebox.storage.records import Arrival, Claims, ClaimState, Count, Early, Move
from oncebox.storage.steps import Steps


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
    """Claim a batch, and store it if it is only received; what came early is kept apart."""
    numbered = any(arrival.message.sequence is not None for arrival in arrivals)
    claim = store.receive if receiving and not numbered else store.claim
    claims = yield from claim(work, consumer, arrivals, keep_payload=keep_payload, timeout=timeout)
    if not numbered or ClaimState.refused in claims.answers:
        return claims
    claims = yield from _admitted(store, work, consumer, arrivals, claims, gaps)
    if receiving:
        yield from store.store_received(work, consumer, arrivals, claims)
    return claims


def _admitted(
    store: Store,
    work: Work,
    consumer: str,
    arrivals: Sequence[Arrival],
    claims: Claims,
    gaps: Gaps,
) -> Steps[Claims]:
    """What the claims are, now that the numbers are looked at; under the locks of the keys."""
    counts = _counts(arrivals, claims)
    if not counts:
        return claims
    known = yield from store.sequence_states(work, consumer, list(counts))
    unknown = Numbers(gaps.first)
    found = {count: admit(known.get(count, unknown), arrived) for count, arrived in counts.items()}
    answers = list(claims.answers)
    late_at_mark = {n for n, answer in enumerate(answers) if answer == ClaimState.too_late}

    def answer(places: Sequence[int], letter: str) -> None:
        for place in set(places) - late_at_mark:
            answers[place] = letter

    # A key one of whose counts goes another way than its messages came is stored as a whole.
    mixed = {count.key for count, admission in found.items() if not admission.in_order}
    early: dict[tuple[Count, int], int] = {}
    moves = []
    for count, admission in found.items():
        kept = _kept(admission, counts[count], count.key in mixed)
        early.update({(count, number): place for place, number in kept})
        answer(list(admission.late), ClaimState.late_sequence)
        answer(list(admission.taken), ClaimState.sequence_taken)
        answer([place for place, _ in kept], ClaimState.stored)
        answer(list(admission.early), ClaimState.awaiting_sequence)
        if admission.admitted or admission.early:
            admitted = admission.admitted if count.key in mixed else ()
            moves.append(Move(count, admission.next, admission.has_early, admitted))
    buffered = [
        Early(arrivals[place], None if place in late_at_mark else claims.seqs[place])
        for place in early.values()
    ]
    taken = yield from store.store_awaiting(work, consumer, buffered)
    answer([early[place] for place in taken], ClaimState.sequence_taken)
    yield from store.advance_sequences(work, consumer, moves)
    return msgspec.structs.replace(claims, answers="".join(answers))


def _counts(arrivals: Sequence[Arrival], claims: Claims) -> Mapping[Count, list[tuple[int, int]]]:
    """The places of new messages that have numbers, and these, by what they are counted by."""
    counts: dict[Count, list[tuple[int, int]]] = {}
    for place, (arrival, seq) in enumerate(zip(arrivals, claims.seqs, strict=True)):
        message = arrival.message
        if seq is not None and message.sequence is not None and message.key is not None:
            count = Count(message.key, message.epoch)
            counts.setdefault(count, []).append((place, message.sequence))
    return counts


def _kept(
    admission: Admission, arrived: Sequence[tuple[int, int]], is_mixed: bool
) -> list[tuple[int, int]]:
    """Which of the messages of a count go through the buffer, if only for a moment."""
    refused = {*admission.late, *admission.taken}
    return [
        (place, number)
        for place, number in arrived
        if place not in refused and (is_mixed or place in admission.early)
    ]
