"""The .sql files, and the schema's history."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from oncebox import Inbox
from oncebox.errors import CodeTooOld, SchemaMissing
from oncebox.store import Names, PostgresStore, SqliteStore, store_for
from oncebox.store.migrations import check, missing
from oncebox.store.statements import Migration, Statement, migrations, statements
from worlds import MIGRATIONS

DIALECTS = ["postgres", "sqlite"]


def sql_files(dialect: str) -> list[str]:
    folder = files("oncebox.store").joinpath(dialect)
    return [entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")]


def everything(dialect: str, names: Names) -> dict[str, str]:
    made = {s.name: s.sql for m in migrations(dialect, names) for s in m.statements}
    assert made
    return {**made, **{f"run {name}": sql for name, sql in statements(dialect, names).items()}}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_has_a_name_of_its_own_and_a_description(dialect: str) -> None:
    for text in sql_files(dialect):
        blocks = re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]
        found = [block.splitlines()[0] for block in blocks]
        assert len(found) == len(set(found))
        for block in blocks:
            assert re.match(r"\w+\n-- \S.*\n", block), block[:80]
            assert block.rstrip().endswith(";"), block[:80]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_is_filled_and_ready_to_execute(dialect: str) -> None:
    for name, sql in everything(dialect, Names("box_", "billing")).items():
        assert not re.search(r"\{[a-z_]*\}", sql), name
        assert not sql.startswith("--"), name
        assert not sql.endswith(";"), name
        assert re.match(r"[A-Z]+ ", sql), name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_name_is_qualified_by_the_schema_but_a_new_index(dialect: str) -> None:
    mentions = 0
    for name, sql in everything(dialect, Names("box_", "billing")).items():
        for mention in re.finditer(r'"box_\w+"', sql):
            before = sql[: mention.start()]
            assert before.endswith(('"billing".', "INDEX ")), name
            mentions += 1
        assert "box_" not in re.sub(r'"box_\w+"', "", sql).replace("oncebox_probe", ""), name
    assert mentions > 20


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_name_fits_behind_the_longest_prefix(dialect: str) -> None:
    prefix = "x" * 43
    made = {
        name
        for sql in everything(dialect, Names(prefix)).values()
        for name in re.findall(rf'"({prefix}\w*)"', sql)
    }
    assert len(made) > 10
    assert max(map(len, made)) <= 63


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_migration_can_be_taken_back_newest_first(dialect: str) -> None:
    first, second, *_, sixth, last = (m.undone() for m in migrations(dialect, Names("b_", "s")))
    assert last[0] == 'DROP VIEW "s"."b_finished"'
    assert sixth[0] == 'DROP VIEW "s"."b_message"'
    assert set(first) >= {
        f'DROP TABLE "s"."b_{table}"' for table in ("inbox", "pending", "dead", "attempt", "minute")
    }
    index = second.index('DROP INDEX "s"."b_dead_untold"')
    assert index < second.index('ALTER TABLE "s"."b_dead" DROP COLUMN tell_at')


@pytest.mark.parametrize("dialect", DIALECTS)
def test_history_is_numbered_without_gaps_and_serves_no_newer_code(dialect: str) -> None:
    history = migrations(dialect, Names())
    assert [m.version for m in history] == list(range(1, len(history) + 1))
    assert all(1 <= m.serves <= m.version for m in history)
    assert all(m.name.startswith(f"{m.version:04}_") for m in history)


def test_both_dialects_have_the_same_history() -> None:
    one, two = (migrations(dialect, Names()) for dialect in DIALECTS)
    assert [(m.version, m.name, m.serves) for m in one] == [
        (m.version, m.name, m.serves) for m in two
    ]


def test_a_statement_is_executed_without_comments_and_semicolon() -> None:
    statement = Statement("x", "-- why\n-- and how\nSELECT 1;")
    assert statement.sql == "SELECT 1"


def test_a_dialect_has_its_store() -> None:
    assert isinstance(store_for("postgres", Names()), PostgresStore)
    assert isinstance(store_for("sqlite", Names()), SqliteStore)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_script_for_review_has_every_statement_with_its_description(dialect: str) -> None:
    store = store_for(dialect, Names("b_"))
    text = store.script()
    newest = store.migrations[-1]
    assert text.startswith('CREATE TABLE IF NOT EXISTS "b_meta"')
    assert text.endswith(f"(version, serves) VALUES ({newest.version}, {newest.serves});\n")
    for migration in store.migrations:
        for statement in migration.statements:
            assert statement.text in text
            assert statement.text.startswith("-- ")
            assert statement.text.endswith(";")


# -- which schema serves which code ---------------------------------------------------------------

HISTORY = [
    Migration(1, "0001_a", 1, []),
    Migration(2, "0002_b", 1, []),
    Migration(3, "0003_c", 2, []),
]


def test_the_steps_that_are_missing_are_the_newer_ones() -> None:
    assert missing(HISTORY, 0) == HISTORY
    assert missing(HISTORY, 2) == HISTORY[2:]
    assert missing(HISTORY, 3) == missing(HISTORY, 9) == []


def test_a_schema_of_this_version_or_a_newer_one_that_serves_it_is_fine() -> None:
    for found in ((3, 2), (4, 1), (9, 3)):
        check(HISTORY, found)


def test_missing_tables_are_reported() -> None:
    with pytest.raises(SchemaMissing, match=r"are missing: call inbox\.migrate\(\)"):
        check(HISTORY, None)


def test_an_older_schema_is_reported_with_both_versions() -> None:
    with pytest.raises(SchemaMissing, match="have version 2, this code needs 3"):
        check(HISTORY, (2, 1))


def test_a_schema_that_is_too_new_asks_for_newer_code() -> None:
    with pytest.raises(CodeTooOld, match="serve code that knows version 4; this code knows 3"):
        check(HISTORY, (5, 4))


def test_migrating_applies_what_is_missing_and_then_nothing(tmp_path: Path) -> None:
    inbox = Inbox("billing", f"sqlite:///{tmp_path}/inbox.db")
    assert inbox.migrate() == MIGRATIONS
    assert inbox.migrate() == []
