"""What happened, in plain sentences that claim no more than this run has shown."""

from __future__ import annotations

from oncebox.cli.demo.books import Balance
from oncebox.cli.demo.state import State

RESULT = 1
"""The place of the sentence about oncebox, unless the demo was interrupted."""


def verdict(state: State) -> list[str]:
    """The sentences at the end of the demo."""
    if state.is_interrupted:
        return _interrupted(state)
    return [_kills(state), _oncebox(state), *_naive(state)]


def _interrupted(state: State) -> list[str]:
    ours = state.oncebox.balance
    sentences = [
        f"You stopped the demo after {state.seconds:.0f} s, before both sides had processed all "
        "payments: this run proves nothing."
    ]
    if ours.sent:
        sentences.append(
            f"Until then, oncebox had booked {ours.booked:,} of {_payments(ours.sent)}, "
            f"{_doubled(ours):,} of them twice."
        )
    if state.oncebox.kills:
        sentences.append(f"kill -9 had hit it {_times(state.oncebox.kills)}.")
    return sentences


def _kills(state: State) -> str:
    ours, theirs = state.oncebox.kills, state.naive.kills
    if not ours and not theirs:
        return "No process was killed, so this run does not show what happens under kill -9."
    if ours == theirs:
        return f"kill -9 hit both sides {_times(ours)}, at the same moments."
    return f"kill -9 hit oncebox {_times(ours)}, and the naive consumer {_times(theirs)}."


def _oncebox(state: State) -> str:
    if not state.is_balanced:
        return _not_balanced(state)
    under = " under kill -9" if state.oncebox.kills else ""
    text = f"oncebox booked each of the {_payments(state.oncebox.balance.sent)} once{under}"
    if state.absorbed:
        text += f", and absorbed {_count(state.absorbed, 'duplicate')}"
    if state.retried:
        text += f"; {_count(state.retried, 'dead letter')} succeeded after a retry"
    return text + "."


def _not_balanced(state: State) -> str:
    ours = state.oncebox.balance
    why = "" if state.oncebox.is_finished else " It did not process all messages in time."
    return (
        f"The books of oncebox do not balance: {_payments(ours.sent)} sent, {_doubled(ours):,} "
        f"booked twice, {ours.lost:,} missing, the accounts are off by {money(ours.cents_off)}."
        f"{why} Please report this as a bug, with the output of `oncebox demo --keep`."
    )


def _naive(state: State) -> list[str]:
    theirs = state.naive.balance
    if theirs.is_right:
        return ["The naive consumer booked each payment once too: in this run, it was lucky."]
    sentences = [_naive_doubles(theirs, kills=state.naive.kills)]
    if theirs.lost and state.naive.is_finished:
        sentences.append(
            f"It lost {_payments(theirs.lost)}: it drops a payment after three failed attempts."
        )
    if not state.naive.is_finished:
        sentences.append(f"It did not finish in time: {_payments(theirs.lost)} waited.")
    return [*sentences, f"Its accounts are off by {money(theirs.cents_off)}."]


def _naive_doubles(theirs: Balance, *, kills: int) -> str:
    text = "The naive consumer booked "
    if theirs.twice_after_kill:
        text += (
            f"{_payments(theirs.twice_after_kill)} twice because kill -9 came between the booking "
            "and its record of the event"
        )
    elif kills:
        text += "no payment twice because of kill -9: no kill came at a wrong moment for it"
    else:
        text += "no payment twice because of a crash"
    if theirs.twice_by_click:
        text += f", and {theirs.twice_by_click:,} twice because of double clicks"
    return f"{text}."


def _doubled(balance: Balance) -> int:
    return balance.twice_after_kill + balance.twice_by_click


def money(cents: int) -> str:
    """An amount with its sign, such as +12.50."""
    return f"{cents / 100:+,.2f}" if cents else "0.00"


def _payments(count: int) -> str:
    return _count(count, "payment")


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
