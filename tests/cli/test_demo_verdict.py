"""The verdict of the demo claims what the run has shown, and no more."""

from __future__ import annotations

import pytest

from oncebox.cli.demo.books import Balance
from oncebox.cli.demo.state import Side, State
from oncebox.cli.demo.verdict import verdict

RIGHT = Balance(sent=1000, booked=1000)
WRONG = Balance(
    sent=1000, booked=997, twice_after_kill=12, twice_by_click=20, lost=3, cents_off=-12345
)


def state(*, kills: int = 9, ours: Balance = RIGHT, theirs: Balance = WRONG) -> State:
    return State(
        oncebox=Side(kills=kills, balance=ours, is_finished=True),
        naive=Side(kills=kills, balance=theirs, is_finished=True),
        is_over=True,
        absorbed=250,
        retried=1,
    )


def text(state: State) -> str:
    return " ".join(verdict(state))


def test_a_run_with_kills_that_balances_says_so() -> None:
    assert verdict(state()) == [
        "kill -9 hit both sides 9 times, at the same moments.",
        "oncebox booked each of the 1,000 payments once under kill -9, and absorbed 250 "
        "duplicates; 1 dead letter succeeded after a retry.",
        "The naive consumer booked 12 payments twice because kill -9 came between the booking "
        "and its record of the event, and 20 twice because of double clicks.",
        "It lost 3 payments: it drops a payment after three failed attempts.",
        "Its accounts are off by -123.45.",
    ]


def test_a_run_without_kills_claims_nothing_about_kills() -> None:
    quiet = state(kills=0, theirs=Balance(sent=1000, booked=1000, twice_by_click=20, cents_off=1))
    found = text(quiet)
    assert found.startswith("No process was killed, so this run does not show")
    assert "oncebox booked each of the 1,000 payments once, and" in found
    assert "under kill -9, and" not in found
    assert "kill -9 came" not in found
    assert "no payment twice because of a crash" in found


def test_different_numbers_of_kills_are_both_named() -> None:
    uneven = state()
    uneven.naive.kills = 8
    assert verdict(uneven)[0] == "kill -9 hit oncebox 9 times, and the naive consumer 8 times."


@pytest.mark.parametrize(
    ("ours", "named"),
    [
        (Balance(sent=1000, booked=1000, twice_after_kill=2, cents_off=250), "2 booked twice"),
        (Balance(sent=1000, booked=1000, twice_by_click=3), "3 booked twice"),
        (Balance(sent=1000, booked=996, lost=4, cents_off=-250), "4 missing"),
        (Balance(sent=1000, booked=1000, cents_off=-250), "off by -2.50"),
    ],
)
def test_books_that_do_not_balance_are_reported_with_the_error(ours: Balance, named: str) -> None:
    wrong = state(ours=ours)
    assert not wrong.is_balanced
    assert "The books of oncebox do not balance" in text(wrong)
    assert named in text(wrong)
    assert "payments once" not in text(wrong)


def test_messages_that_are_not_processed_in_time_are_not_a_balance() -> None:
    late = state()
    late.oncebox.is_finished = False
    assert not late.is_balanced
    assert "did not process all messages in time" in text(late)


def test_a_naive_consumer_without_time_has_lost_nothing() -> None:
    late = state()
    late.naive.is_finished = False
    assert "It did not finish in time: 3 payments waited." in text(late)
    assert "lost" not in text(late)


def test_an_interrupted_run_proves_nothing() -> None:
    stopped = state(ours=Balance(sent=1000, booked=900, lost=100, cents_off=-5))
    stopped.is_interrupted, stopped.seconds = True, 7.2
    assert verdict(stopped) == [
        "You stopped the demo after 7 s, before both sides had processed all payments: this run "
        "proves nothing.",
        "Until then, oncebox had booked 900 of 1,000 payments, 0 of them twice.",
        "kill -9 had hit it 9 times.",
    ]


def test_a_naive_consumer_that_makes_no_error_was_lucky() -> None:
    assert "it was lucky" in text(state(theirs=RIGHT))
