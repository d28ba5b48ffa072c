"""The .sql files, and the schema's history."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from oncebox import Inbox
from oncebox.errors import CodeTooOld, ConfigurationError, SchemaMissing
from oncebox.storage.postgres import PostgresStore
from oncebox.storage.sql.migrations import check, missing
from oncebox.storage.sql.names import Names
from oncebox.storage.sql.statements import Migration, Statement, migrations, statements
from oncebox.storage.sqlite import SqliteStore
from oncebox.storage.stores import store_for
from support.worlds import MIGRATIONS

DIALECTS = ["postgres", "sqlite"]


def sql_files(dialect: str) -> list[str]:
    top = files("oncebox.storage").joinpath(dialect)
    folders = (top, top / "migrations", top / "migrations" / "0002_processing")
    found = (entry for folder in folders for entry in folder.iterdir())
    return [entry.read_text("utf-8") for entry in found if entry.name.endswith(".sql")]


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
def test_every_statement_of_a_dialect_has_another_name(dialect: str) -> None:
    top = files("oncebox.storage").joinpath(dialect)
    executed = [e.read_text("utf-8") for e in top.iterdir() if e.name.endswith(".sql")]
    found = [n for text in executed for n in re.findall(r"^-- name: (\w+)$", text, re.M)]
    assert len(found) == len(set(found))


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
    prefix = "x" * 39
    made = {
        name
        for sql in everything(dialect, Names(prefix)).values()
        for name in re.findall(rf'"({prefix}\w*)"', sql)
    }
    assert len(made) > 10
    assert max(map(len, made)) <= 63


@pytest.mark.parametrize("dialect", DIALECTS)
def test_migrations_are_reversed_newest_first(dialect: str) -> None:
    claims, processing = (m.undone() for m in migrations(dialect, Names("b_", "s")))
    assert processing[:2] == ['DROP VIEW "s"."b_finished"', 'DROP VIEW "s"."b_message"']
    index = processing.index('DROP INDEX "s"."b_dead_letter_unnotified"')
    assert index < processing.index('DROP TABLE "s"."b_dead_letter"')
    assert 'DROP INDEX "s"."b_inbox_by_caller"' in processing
    assert claims == [
        'DROP TABLE "s"."b_consumer"',
        'DROP INDEX "s"."b_inbox_received_at"',
        'DROP TABLE "s"."b_inbox"',
    ]


def test_an_added_column_can_be_taken_back() -> None:
    added = Statement("x", '-- A new column.\nALTER TABLE "b_inbox" ADD COLUMN more text;')
    undone = Migration(3, "0003_more", 2, [added]).undone()
    assert undone == ['ALTER TABLE "b_inbox" DROP COLUMN more']


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_claims_are_two_tables_and_no_function(dialect: str) -> None:
    claims = migrations(dialect, Names())[0]
    made = [s.sql.split("(")[0].strip() for s in claims.statements if "CREATE" in s.sql]
    assert sorted(sql for sql in made if "INDEX" not in sql) == [
        'CREATE TABLE "oncebox_consumer"',
        'CREATE TABLE "oncebox_inbox"',
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_file_of_a_migration_is_executed_once_and_views_come_last(dialect: str) -> None:
    folder = files("oncebox.storage").joinpath(dialect, "migrations", "0002_processing")
    order = folder.joinpath("order.txt").read_text("utf-8").split("serves: 2\n")[1].split()
    texts = {e.name: e.read_text("utf-8") for e in folder.iterdir() if e.name.endswith(".sql")}
    assert sorted(f"{topic}.sql" for topic in order) == sorted(texts)
    assert order[-1] == "views"
    assert all("CREATE VIEW" not in texts[f"{topic}.sql"] for topic in order[:-1])
    assert max(len(text.splitlines()) for text in texts.values()) <= 350


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
    with pytest.raises(ConfigurationError, match="no store for the database 'mysql'"):
        store_for("mysql", Names())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_script_for_review_has_every_statement_with_its_description(dialect: str) -> None:
    store = store_for(dialect, Names("b_"))
    text = store.script()
    newest = store.migrations[-1]
    assert text.startswith('CREATE TABLE IF NOT EXISTS "b_schema_version"')
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


def test_a_schema_with_only_the_claims_tables_is_reported() -> None:
    with pytest.raises(SchemaMissing, match=r"has only the claims tables: call inbox\.migrate\(\)"):
        check(HISTORY, (1, 1))


def test_an_older_schema_is_reported_with_both_versions() -> None:
    with pytest.raises(SchemaMissing, match="have version 2, this code needs 3"):
        check(HISTORY, (2, 1))


def test_a_schema_that_is_too_new_asks_for_newer_code() -> None:
    with pytest.raises(CodeTooOld, match="knows version 4 or later; this one knows 3"):
        check(HISTORY, (5, 4))


def test_migrate_applies_missing_migrations_and_then_nothing(tmp_path: Path) -> None:
    inbox = Inbox("billing", f"sqlite:///{tmp_path}/inbox.db")
    assert inbox.migrate() == MIGRATIONS
    assert inbox.migrate() == []
