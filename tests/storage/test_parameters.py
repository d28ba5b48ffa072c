"""`:name` parameters, and what a handler's statement may not say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.storage.drivers.parameters import (
    StatementError,
    Style,
    check_driver_statement,
    for_handler,
    translate,
)


def sql(text: str, style: Style = "qmark") -> str:
    return translate(text, style).sql


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("qmark", "a = ? and b = ?"),
        ("format", "a = %s and b = %s"),
        ("binary", "a = %b and b = %b"),
        ("dollar", "a = $1 and b = $2"),
    ],
)
def test_a_name_becomes_what_the_driver_takes(style: Style, expected: str) -> None:
    translated = translate("a = :x and b = :y", style)
    assert translated.sql == expected
    assert translated.names == {"x", "y"}
    assert translated.bind({"y": 2, "x": 1}) == (1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "select ':a'",
        "select 'it''s :a'",
        r"select E'it\'s :a'",
        r"select e'\\', ' :a'",
        r"select 'a\', ' :a'",
        'select ":a"',
        'select "a"":a"',
        "select 1 -- :a",
        "select 1 -- it's :a\n+ 1",
        "select /* :a */ 1",
        "select /* it's /* nested :a */ :a */ 1",
        "select /* never closed :a",
        "select '1'::int",
        "select a::text::int",
        "select f(a := 1)",
        "select $$ :a $$",
        "select $tag$ $$ :a $other$ :a $tag$",
        "select $1",
        "select a[1:2]",
        "select '12:30'",
    ],
)
def test_text_that_only_looks_like_a_name_stays(text: str) -> None:
    translated = translate(text, "qmark")
    assert translated.sql == text
    assert translated.names == frozenset()
    assert translated.bind({}) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select :a::int", "select ?::int"),
        ("f(x := :a)", "f(x := ?)"),
        ("select ':x' || :a || ':y'", "select ':x' || ? || ':y'"),
        (r"select E'\'' || :a", r"select E'\'' || ?"),
        ("select 'a' -- 'b\n, :a", "select 'a' -- 'b\n, ?"),
        ("select /* ' */ :a", "select /* ' */ ?"),
        ("select /* /* */ ' */ :a", "select /* /* */ ' */ ?"),
        ("select $x$ ' $x$, :a", "select $x$ ' $x$, ?"),
        ('select "it\'s", :a', 'select "it\'s", ?'),
        ("(:a,:a)", "(?,?)"),
        ("x=:a;", "x=?;"),
        ("type'x', :a", "type'x', ?"),
    ],
)
def test_names_are_found_between_quotes_comments_and_casts(text: str, expected: str) -> None:
    translated = translate(text, "qmark")
    assert translated.sql == expected
    assert translated.names == {"a"}


def test_a_repeated_name_is_bound_each_time() -> None:
    assert translate(":a, :b, :a", "qmark").bind({"a": 1, "b": 2}) == (1, 2, 1)
    assert translate(":a", "qmark").bind({"a": None}) == (None,)


@pytest.mark.parametrize("style", ["format", "binary"])
def test_percent_signs_survive_drivers_that_use_them(style: Style) -> None:
    assert sql("a % 2 like '%x' -- 5%\n/* % */ $$%$$ \"%\"", style) == (
        "a %% 2 like '%%x' -- 5%%\n/* %% */ $$%%$$ \"%%\""
    )


def test_percent_signs_stay_where_they_mean_nothing() -> None:
    assert sql("a % 2 like '%x'") == "a % 2 like '%x'"
    assert sql("a % :a", "dollar") == "a % $1"


def test_a_missing_value_is_named() -> None:
    with pytest.raises(StatementError) as caught:
        translate(":b, :a, :c", "qmark").bind({"b": 1})
    assert str(caught.value) == "no value for :a, :c"


def test_an_unused_value_is_named() -> None:
    with pytest.raises(StatementError) as caught:
        translate(":a", "qmark").bind({"a": 1, "z": 1, "b": 1})
    assert str(caught.value) == "the statement has no :b, :z"


def test_a_misspelled_name_is_shown_from_both_sides() -> None:
    with pytest.raises(StatementError) as caught:
        translate("select :total", "qmark").bind({"totl": 1})
    assert str(caught.value) == "no value for :total; the statement has no :totl"


def test_a_name_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(StatementError, match="'größe' is not ASCII"):
        translate("select :größe", "qmark")


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab:'\"-/*$%;\\eE \n1"), max_size=30))
def test_nothing_but_names_is_ever_changed(text: str) -> None:
    translated = translate(text, "qmark")
    restored = translated.sql
    for value in translated.pick({name: f":{name}" for name in translated.names}):
        restored = restored.replace("?", value, 1)
    assert restored == text


# -- transactions are not a handler's to end ------------------------------------------------------

WORDS = "begin start commit end rollback abort savepoint release attach detach".split()  # noqa: SIM905


@pytest.mark.parametrize("word", WORDS)
def test_transaction_words_are_refused_wherever_a_statement_begins(word: str) -> None:
    for text in (
        word,
        word.upper(),
        word.title() + " x",
        f" \n\t{word};",
        f"-- a comment\n{word}",
        f"/* a /* nested */ comment */{word}",
        f"select 1; {word}",
        f"select ';'; -- more\n {word} x",
        f";;{word}",
    ):
        with pytest.raises(StatementError, match=f"must not execute {word.upper()}"):
            for_handler(text, "qmark")


@pytest.mark.parametrize(
    "text",
    ["prepare transaction 'x'", "SET  TRANSACTION READ ONLY", "select 1; set /**/ transaction x"],
)
def test_two_word_transaction_statements_are_refused(text: str) -> None:
    with pytest.raises(StatementError, match=r"must not execute (PREPARE|SET) TRANSACTION"):
        for_handler(text, "qmark")


@pytest.mark.parametrize(
    "text",
    [
        "select 'commit'",
        "insert into log values ('; rollback')",
        'select "end" from "begin"',
        "select 1 -- ; commit",
        "select 1 /* ; commit */",
        "select $$; commit$$",
        "select case when a then b end",
        "update t set x = case a when 1 then 2 end where id = :id",
        "select release, savepoint from versions",
        "update orders set transaction = :t",
        "set local statement_timeout = 5",
        "prepare p as select 1",
        "select 1;",
        "",
        "ending",
    ],
)
def test_such_words_are_allowed_where_they_end_nothing(text: str) -> None:
    assert for_handler(text, "qmark").forbidden == ()


@pytest.mark.parametrize(
    "text", ["rollback to a", "ROLLBACK TRANSACTION TO SAVEPOINT a", "select 1; rollback work to a"]
)
def test_a_handler_goes_back_only_by_leaving_its_savepoint_block(text: str) -> None:
    with pytest.raises(StatementError, match=r"ROLLBACK TO: .* Use tx\.savepoint\(\)"):
        for_handler(text, "qmark")


@pytest.mark.parametrize(
    "text",
    [
        "select :a",
        "SAVEPOINT sa_savepoint_1",
        "RELEASE SAVEPOINT sa_savepoint_1",
        "release a",
        "ROLLBACK TO SAVEPOINT sa_savepoint_1",
        "rollback to a",
        "rollback transaction to savepoint a",
        "savepoint a; rollback to a",
    ],
)
def test_savepoints_of_a_driver_pass(text: str) -> None:
    check_driver_statement(text)


@pytest.mark.parametrize(
    "text",
    [
        "COMMIT",
        "rollback",
        "ROLLBACK AND CHAIN",
        "begin",
        "prepare transaction 'a'",
        "select 1; commit",
        "SAVEPOINT oncebox_probe",
        'RELEASE SAVEPOINT "ONCEBOX_probe"',
        "rollback to oncebox_probe",
    ],
)
def test_a_driver_may_not_end_the_transaction_or_touch_our_savepoints(text: str) -> None:
    with pytest.raises(StatementError, match="a handler must not execute"):
        check_driver_statement(text)


@pytest.mark.parametrize("text", ["savepoint a; commit", "release a; select 1; rollback"])
def test_a_savepoint_does_not_hide_later_statements(text: str) -> None:
    with pytest.raises(StatementError, match=r"must not execute (COMMIT|ROLLBACK):"):
        check_driver_statement(text)


def test_our_own_statements_may_use_them() -> None:
    assert translate("SAVEPOINT x", "qmark").sql == "SAVEPOINT x"


def test_a_text_is_translated_once_and_the_memory_is_bounded() -> None:
    assert translate("select :once", "qmark") is translate("select :once", "qmark")
    for number in range(3000):
        translate(f"select {number}", "qmark")
    assert translate.cache_info().currsize <= 2048
