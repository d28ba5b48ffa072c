"""Messages and dead letters are named, selected and shown in the same way by all commands."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from oncebox import CloudEvents, Delivery, Inbox, Reject, Retry
from support.events import cloud_event

from .conftest import Command, query

pytestmark = pytest.mark.usefixtures("ready")

APP = "billing:inbox"
PENDING = "pending-1"


@pytest.fixture
def filled(ready: None, database: str) -> None:
    """Messages: done, two dead (one blocks another message), retrying; two quarantined."""

    def handle(payload: dict[str, Any]) -> None:
        if "reject" in payload:
            raise Reject("no")
        if "fail" in payload:
            raise KeyError("missing")
        if "later" in payload:
            raise ValueError("later")

    def one(id: str, payload: dict[str, Any], key: str | None = None) -> Delivery:
        return cloud_event("order", payload, id=id, key=key, source="shop")

    with Inbox("billing", database, identity=CloudEvents()) as inbox:
        inbox.on("order")(handle)
        inbox.on("slow", retry=Retry(max_attempts=2))(handle)
        inbox.process([one("done-1", {}), one("reject-1", {"reject": 1}, "k")])
        inbox.process([one("after-1", {}, "k"), one("done-1", {"x": 1}), Delivery(b"{}")])
        inbox.process([cloud_event("slow", {"later": 1}, id=PENDING, source="shop")])


def shown(oncebox: Command, *arguments: str) -> dict[str, Any]:
    done = oncebox("show", APP, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("filled")
def test_show_opens_messages_in_every_state(oncebox: Command) -> None:
    for id, state, waits in (
        ("done-1", "done", None),
        (PENDING, "pending", "until"),
        ("after-1", "pending", "behind dead letter 1 of its key"),
        ("reject-1", "dead", None),
    ):
        found = shown(oncebox, id)
        assert (found["message_id"], found["state"], found["origin"]) == (id, state, "shop")
        assert (found["waits"] or "").startswith(waits or ""), id
        assert found["payload"], "kept, wherever the message is stored"
        text = oncebox("show", APP, id).stdout
        assert re.search(rf"^state +{state}", text, re.MULTILINE), text
        assert "(not kept)" not in text
    letter = shown(oncebox, "reject-1")
    assert (letter["dead_letter_id"], letter["reason"]) == ("1", "rejected")
    assert letter["error"] == "Reject: no"
    assert letter["attempt_history"][0]["outcome"] == "dead"
    text = oncebox("show", APP, "reject-1").stdout
    assert re.search(rf"^fingerprint +{letter['fingerprint'][:8]}$", text, re.MULTILINE), text


@pytest.mark.usefixtures("filled")
def test_show_opens_dead_letters_and_quarantined_deliveries_by_number(oncebox: Command) -> None:
    dead = shown(oncebox, "1")
    assert dead == shown(oncebox, "reject-1") == shown(oncebox, "--number", "1")
    mismatch = shown(oncebox, "2")
    assert (mismatch["dead_letter_id"], mismatch["message_id"]) == ("2", "done-1")
    assert (mismatch["state"], mismatch["reason"]) == ("quarantined", "payload_mismatch")
    nameless = shown(oncebox, "3")
    assert (nameless["message_id"], nameless["reason"]) == (None, "missing_id")
    assert nameless["payload"] == "{}"
    text = oncebox("show", APP, "3").stdout
    assert re.search(r"^state +quarantined \(missing_id\)$", text, re.MULTILINE), text
    assert re.search(r"^payload +{}$", text, re.MULTILINE), text
    beside = shown(oncebox, "done-1")
    assert (beside["state"], beside["related_dead_letter_ids"]) == ("done", ["2"])
    text = oncebox("show", APP, "done-1").stdout
    assert "dead letter 2, quarantined (payload_mismatch)" in text


@pytest.mark.usefixtures("filled")
def test_show_opens_a_quarantined_delivery_without_a_message_by_its_id(
    oncebox: Command, database: str
) -> None:
    named = "SET message_id = 'late', origin = 'shop', reason = 'too_late' WHERE id = 3"
    query(database, f"UPDATE oncebox_dead_letter {named}")
    found = shown(oncebox, "late")
    assert (found["dead_letter_id"], found["message_id"]) == ("3", "late")
    assert (found["state"], found["reason"]) == ("quarantined", "too_late")


def test_show_prints_the_payload_of_unfinished_messages_where_none_is_kept(
    oncebox: Command, database: str
) -> None:
    def reject(payload: dict[str, Any]) -> None:
        raise Reject("no")

    with Inbox("billing", database, keep_payload=False, identity=CloudEvents()) as inbox:
        inbox.on("order")(reject)
        for id in ("dead", "pending"):
            inbox.process([cloud_event("order", {"total": 4200}, id=id, key="k")])
    for id in ("dead", "pending"):
        found = shown(oncebox, id)
        assert (found["state"], "4200" in found["payload"]) == (id, True)


@pytest.mark.usefixtures("filled")
def test_show_says_which_messages_match_and_how_to_choose(oncebox: Command, database: str) -> None:
    with Inbox("billing", database) as inbox:
        inbox.on("order")(lambda payload: None)
        inbox.process([cloud_event("order", id="1", source="shop")])
        inbox.process([cloud_event("order", id="done-1", source="other shop")])
    for named, choices in (
        ("1", ["--id 1 --origin shop", "--id reject-1 --origin shop"]),
        ("done-1", ["--id done-1 --origin shop", "--id done-1 --origin 'other shop'"]),
    ):
        done = oncebox("show", APP, named)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{named!r} is ambiguous, 2 match" in done.stderr
        for choice in choices:
            assert f"oncebox show {APP} {choice}  # " in done.stderr
    assert shown(oncebox, "--id", "1")["state"] == "done"
    assert shown(oncebox, "--number", "1")["message_id"] == "reject-1"
    assert shown(oncebox, "done-1", "--origin", "other shop")["origin"] == "other shop"
    for wrong in ((), ("1", "--number", "1"), ("--id", "1", "--number", "1")):
        assert "name one message" in oncebox("show", APP, *wrong).stderr
    missing = oncebox("show", APP, "99")
    assert (missing.returncode, "no message or dead letter '99'" in missing.stderr) == (3, True)


@pytest.mark.usefixtures("filled")
def test_dead_letters_are_named_by_number_or_by_id(oncebox: Command, database: str) -> None:
    act = ("--why", "fixed", "--yes", "--json")
    listed = oncebox("dead-letters", APP, "reject-1", "3", "--json").stdout.splitlines()
    assert [json.loads(line)["dead_letter_id"] for line in listed] == ["1", "3"]
    preview = oncebox("retry", APP, "reject-1", "--dry-run", "--json")
    assert json.loads(preview.stdout) == {"action": "retry", "dry_run": True, "matching": 1}
    done = oncebox("retry", APP, "reject-1", "99", *act)
    assert json.loads(done.stdout)["done"] == 1
    assert done.returncode == 5, "not everything that was named"
    assert "there is no dead letter 99 in this inbox: left out" in done.stderr
    assert oncebox("retry", APP, "reject-1", *act).returncode == 3
    assert oncebox("discard", APP, "--number", "3", *act).returncode == 0
    assert query(database, "SELECT id FROM oncebox_dead_letter") == [(2,)]


@pytest.mark.usefixtures("filled")
def test_a_name_of_two_dead_letters_is_refused(oncebox: Command, database: str) -> None:
    query(database, "UPDATE oncebox_dead_letter SET message_id = '1' WHERE id = 2")
    for command in ("retry", "discard", "dead-letters"):
        done = oncebox(command, APP, "1")
        assert done.returncode == 2
        assert "'1' is ambiguous, 2 match: choose with --number 1: dead (rejected)" in done.stderr
        assert "--number 2: quarantined (payload_mismatch)" in done.stderr
    act = ("--why", "noise", "--yes")
    assert oncebox("discard", APP, "--id", "1", *act).returncode == 0
    assert query(database, "SELECT id FROM oncebox_dead_letter ORDER BY id") == [(1,), (3,)]


@pytest.mark.usefixtures("filled")
def test_filters_select_the_same_in_every_command(oncebox: Command) -> None:
    def ids(command: str, *arguments: str) -> list[str | None]:
        done = oncebox(command, APP, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["message_id"] for line in done.stdout.splitlines()]

    fingerprint = shown(oncebox, "reject-1")["fingerprint"]
    for arguments, expected in (
        (("--reason", "rejected"), ["reject-1"]),
        (("--fingerprint", fingerprint[:8]), ["reject-1"]),
        (("--fingerprint", fingerprint.upper()), ["reject-1"]),
        (("--id", "reject-1", "--id", "x"), ["reject-1"]),
        (("--origin", "shop", "--state", "dead", "--key", "k", "--since", "1h"), ["reject-1"]),
        (("--reason", "rejected", "--until", "1h"), []),
        (("--reason", "rejected", "--type", "slow"), []),
    ):
        assert ids("list", *arguments) == expected
        assert ids("tail", *arguments) == expected
        assert ids("dead-letters", "--list", *arguments) == expected
        code = oncebox("retry", APP, *arguments, "--dry-run").returncode
        assert code == (0 if expected else 3)
    groups = oncebox("dead-letters", APP, "--reason", "rejected", "--json").stdout
    assert json.loads(groups)["count"] == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("retry", "--reason", "rejectd"), "unknown reason 'rejectd', did you mean 'rejected'?"),
        (("list", "--reason", "out"), "unknown reason 'out', known: undecodable, "),
        (("tail", "--state", "pendign"), "unknown state 'pendign', did you mean 'pending'?"),
        (("erase", "--state", "dead"), "unknown state 'dead', known: done, discarded"),
        (("discard", "--fingerprint", "xyz"), "a fingerprint has 1 to 16 of the characters"),
        (("list", "--fingerprint", ""), "a fingerprint has 1 to 16 of the characters"),
        (("gaps", "--dry-run"), "--dry-run needs --skip"),
        (("archive", "--dry-run"), "--dry-run needs --restore"),
        (("purge", "--why", " ", "--yes"), "--why"),
    ],
)
def test_wrong_values_are_met_with_a_remedy(
    oncebox: Command, database: str, arguments: tuple[str, ...], says: str
) -> None:
    if arguments[0] == "purge":
        for table, column in (("inbox", "received_at"), ("minute_counter", "minute")):
            query(database, f"UPDATE oncebox_{table} SET {column} = {column} - 8 * 86400000000")
        with Inbox("billing", database) as inbox:
            inbox.on("order")(lambda payload: None)
            inbox.process([cloud_event("order", id="new")])
    done = oncebox(arguments[0], APP, *arguments[1:])
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert query(database, "SELECT count(*) FROM oncebox_audit") == [(0,)]


@pytest.mark.usefixtures("filled")
def test_an_ambiguous_fingerprint_names_its_candidates(oncebox: Command, database: str) -> None:
    same = "abcd0000000000"
    query(database, f"UPDATE oncebox_dead_letter SET fingerprint = '{same}01' WHERE id = 1")
    query(database, f"UPDATE oncebox_dead_letter SET fingerprint = '{same}02' WHERE id = 3")
    for command in ("list", "dead-letters", "retry"):
        done = oncebox(command, APP, "--fingerprint", "abcd")
        assert done.returncode == 2
        assert f"{same}01 (Reject: no); {same}02 (MissingId: " in done.stderr


@pytest.mark.usefixtures("filled")
def test_the_totals_of_the_status_are_the_sums_of_their_parts(oncebox: Command) -> None:
    found = json.loads(oncebox("status", APP, "--json").stdout)
    assert found["pending"] == found["ready"] + found["retrying"] + found["blocked"] == 2
    assert found["dead_letters"] == sum(group["count"] for group in found["dead"]) == 3
    text = oncebox("status", APP).stdout
    assert re.search(r"^pending +2 messages: 0 ready, 1 retrying, 1 blocked", text, re.MULTILINE)
    assert re.search(r"^dead letters +3: 1 dead, 2 quarantined$", text, re.MULTILINE), text
    assert re.search(r"^dead +1 rejected, 1 key blocked$", text, re.MULTILINE), text
    check = oncebox("status", APP, "--check")
    assert check.returncode == 4
    assert "check failed: 1 dead letter (rejected) blocks 1 key" in check.stderr


@pytest.mark.usefixtures("filled")
def test_erase_selects_by_state_and_shows_examples(oncebox: Command, database: str) -> None:
    discard = ("discard", APP, "reject-1", "--why", "noise", "--yes")
    assert oncebox(*discard).returncode == 0
    preview = oncebox("erase", APP, "--origin", "shop", "--state", "discarded", "--dry-run")
    assert re.search(r" discarded +order +reject-1 +k ", preview.stdout), preview.stdout
    assert "1 message matches and has content to erase" in preview.stdout
    act = ("--why", "x", "--yes", "--json")
    done = oncebox("erase", APP, "--origin", "shop", "--state", "discarded", *act)
    assert json.loads(done.stdout)["done"] == 1
    kept = "SELECT message_id FROM oncebox_inbox WHERE payload IS NULL ORDER BY 1"
    assert ("done-1",) not in query(database, kept)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("archive", "--at", "nowhere", "--restore"), "no archived messages match"),
        (("gaps", "--key", "k", "--skip"), "key 'k' has no missing sequence number"),
    ],
)
def test_an_action_without_matches_says_so_also_with_json(
    oncebox: Command, arguments: tuple[str, ...], why: str
) -> None:
    done = oncebox(arguments[0], APP, *arguments[1:], "--why", "x", "--yes", "--json")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (3, "", why)


def test_an_unknown_message_is_named_with_its_origin(oncebox: Command) -> None:
    done = oncebox("show", APP, "missing", "--origin", "shop")
    assert done.returncode == 3
    assert "no message or dead letter 'missing' of origin 'shop' in this inbox" in done.stderr


def test_standard_input_is_read_by_one_process_only(oncebox: Command) -> None:
    done = oncebox("run", APP, "--from", "-", "--processes", "2")
    assert done.returncode == 2
    assert "stdin can be read by one process only: use --processes 1" in done.stderr
