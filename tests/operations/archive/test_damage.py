"""Damaged archive files are found and not restored."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from oncebox.errors import ArchiveError
from support.archives import ArchiveHarness
from support.inboxes import produced
from support.tables import age, message_ids
from support.worlds import BOTH, World

pytestmark = pytest.mark.only((*BOTH, "sqlalchemy-asyncpg"), quick=BOTH)


def spoil(place: Path, file: str) -> None:
    raw = bytearray((place / file).read_bytes())
    raw[len(raw) // 2] ^= 1
    (place / file).write_bytes(raw)


def test_nothing_is_restored_from_a_damaged_file(
    world: World, harness: ArchiveHarness, place: Path
) -> None:
    harness.process_and_purge("a", "b")
    (first,) = harness.files()
    harness.process(produced("c"))
    age(world, 8, "message_id = 'c'")
    harness.process(produced("newer"))
    assert harness.purge().purged == 1
    spoil(place, first.file)
    checked = harness.call("archives", "check")
    assert (checked.files, checked.messages, len(checked.damaged)) == (2, 3, 1)
    assert first.file in checked.damaged[0]
    with pytest.raises(ArchiveError, match=f"{first.file} is damaged"):
        harness.restore()
    assert not {"a", "b"} & set(message_ids(world))
    harness.restore(since=first.last_received_at + timedelta(microseconds=1))
    assert message_ids(world) == ["c", "new", "newer"], "the other one is sound"


@pytest.mark.only(BOTH)
def test_a_check_reports_every_damaged_file(
    world: World, harness: ArchiveHarness, place: Path
) -> None:
    for id in ("a", "b", "c", "d"):
        harness.process(produced(id))
        age(world, 8, f"message_id = '{id}'")
        harness.process(produced(f"new {id}"))
        harness.purge()
    sound, spoilt, missing, torn = harness.files()
    spoil(place, spoilt.file)
    (place / missing.file).unlink()
    manifest = torn.file.replace(".jsonl.gz", ".manifest.json")
    (place / manifest).write_bytes(b"{")
    begun = place / sound.file.replace(".jsonl.gz", "0.jsonl.gz.part")
    begun.touch()
    told: list[int] = []
    checked = harness.call("archives", "check", progress=told.append)
    assert (checked.files, told[-1]) == (4, 4)
    assert list(checked.unfinished) == [begun.relative_to(place).as_posix()]
    assert sorted(sentence.split()[0] for sentence in checked.damaged) == sorted(
        [spoilt.file, missing.file, manifest]
    )
    for method in ("find", "restore"):
        with pytest.raises(ArchiveError, match=f"{manifest} is damaged"):
            harness.call("archives", method, **({"why": "x"} if method == "restore" else {}))
