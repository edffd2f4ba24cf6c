"""Schemas as DDL text."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.values.ddl import ddl_of_bodies, ddl_type, parse_ddl, retyped, united
from airflow_poison.values.errors import SettingError

INSTANT = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("boolean", pa.bool_()),
        ("byte", pa.int8()),
        ("tinyint", pa.int8()),
        ("short", pa.int16()),
        ("SMALLINT", pa.int16()),
        ("int", pa.int32()),
        ("Integer", pa.int32()),
        ("long", pa.int64()),
        ("bigint", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(10, 0)),
        ("dec(5)", pa.decimal128(5, 0)),
        ("numeric(38, 6)", pa.decimal128(38, 6)),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", INSTANT),
        ("timestamp_ltz", INSTANT),
        ("timestamp_ntz", pa.timestamp("us")),
        ("void", pa.null()),
        ("array<int>", pa.list_(pa.int32())),
        ("map<string,array<double>>", pa.map_(pa.string(), pa.list_(pa.float64()))),
        ("struct<a: int, b: struct<c: date>>", pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.date32())]))])),
        ("struct<a int>", pa.struct([("a", pa.int32())])),
        ("struct<>", pa.struct([])),
    ],
)
def test_each_type_of_spark_is_one_of_arrow(name: str, kind: pa.DataType) -> None:
    assert parse_ddl(f"a {name}") == pa.schema([("a", kind)])


def test_columns_keep_their_order_and_say_whether_null_is_allowed() -> None:
    found = parse_ddl("carrier string NOT NULL comment 'who\\'s flying', `flight no.` int,\n tail`` string".replace("tail``", "`ta``il`"))
    assert found.names == ["carrier", "flight no.", "ta`il"]
    assert [field.nullable for field in found] == [False, True, True]
    assert found.field(0).metadata == {b"comment": b"who's flying"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "at character 1 the text ends, expected is the name of a column"),
        ("a", "at character 2 the text ends, expected is the type of 'a'"),
        ("a flot", "at character 3 'flot' stands, expected is the type of 'a', one of boolean, byte"),
        ("a flot", "is 'float' meant?"),
        ("a int b int", "at character 7 'b' stands, expected is a comma before the next column, or the end"),
        ("a int, A string", "at character 8 'A' stands, expected is another name"),
        ("a int,", "at character 7 the text ends, expected is the name of a column"),
        ("flight-no int", "at character 7 '-' stands, expected is the type of 'flight'"),
        ("a varchar(10)", "at character 3 'varchar' stands, expected is a type that Arrow and Delta have; write string"),
        ("a interval day", "write long for a number of seconds"),
        ("a variant", "write string for a text of JSON"),
        ("a decimal(39,2)", "at character 11 '39' stands, expected is the number of digits, 1 to 38"),
        ("a decimal(5,6)", "at character 13 '6' stands, expected is the digits behind the point, 0 to 5"),
        ("a decimal(5", "at character 12 the text ends, expected is ')'"),
        ("a array<int", "at character 12 the text ends, expected is '>'"),
        ("a array int", "at character 9 'int' stands, expected is '<'"),
        ("a map<int>", "at character 10 '>' stands, expected is ','"),
        ("a map<void,int>", "at character 7 'void' stands, expected is the type of the keys, which are not null"),
        ("a void not null", "at character 8 'not' stands, expected is a comma before the next column, or the end"),
        ("a struct<b: >", "at character 13 '>' stands, expected is the type of 'b'"),
        ("a int comment b", "at character 15 'b' stands, expected is the text of the comment, in quotes"),
    ],
)
def test_an_error_says_where_what_and_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(SettingError) as raised:
        parse_ddl(text, "output_schema")
    assert f"output_schema={text!r} is not allowed" in str(raised.value)
    assert expected in str(raised.value)


def test_a_column_may_have_an_empty_name_as_in_a_file_of_pandas() -> None:
    assert parse_ddl("`` int, a string").names == ["", "a"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.decimal128(38, 38), "decimal(38,38)"),
        (pa.decimal128(5, -2), "decimal(7,0)"),
        (pa.decimal128(3, 5), "decimal(5,5)"),
        (pa.decimal256(50, 2), "decimal(38,2)"),
        (pa.decimal256(76, 38), "decimal(38,6)"),
        (pa.decimal256(76, 76), "decimal(38,38)"),
    ],
)
def test_a_decimal_of_a_body_is_one_of_spark(kind: pa.DataType, text: str) -> None:
    assert ddl_of_bodies(pa.schema([("d", kind)])) == f"`d` {text}"


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(SettingError, match="columns as DDL text"):
        parse_ddl(["a int"])  # type: ignore[arg-type]  # as a DAG file may


NAMES = st.text(min_size=1, max_size=5).filter(lambda name: "\0" not in name)
SIMPLE = st.sampled_from(["boolean", "byte", "int", "long", "string", "date", "timestamp", "decimal(7,2)", "void"])
TYPES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        inner.map("array<{}>".format),
        st.tuples(SIMPLE.filter(lambda kind: kind != "void"), inner).map(lambda two: f"map<{two[0]},{two[1]}>"),
        st.lists(inner, min_size=1, max_size=3).map(lambda kinds: f"struct<{', '.join(f'f{n}: {kind}' for n, kind in enumerate(kinds))}>"),
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=4, unique_by=lambda column: column[0].lower()))
def test_what_is_written_is_read_and_the_other_way_round(columns: list[tuple[str, str]]) -> None:
    text = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in columns)
    found = parse_ddl(text)
    assert [(field.name, ddl_type(field.type)) for field in found] == columns


@pytest.mark.parametrize(
    ("newer", "older", "both", "differ"),
    [
        ("a int", "b string", "`a` int,`b` string", []),
        ("Id int, b date", "id int", "`id` int,`b` date", []),
        ("a byte", "a bigint", "`a` long", []),
        ("a bigint", "a byte", "`a` long", []),
        ("a decimal(5,2)", "a decimal(10,0)", "`a` decimal(12,2)", []),
        ("a decimal(5,2)", "a int", "`a` decimal(12,2)", []),
        ("a decimal(38,2)", "a decimal(38,0)", "`a` decimal(38,2)", ["a"]),
        ("a float", "a double", "`a` double", []),
        ("a double", "a int", "`a` double", []),
        ("a double", "a bigint", "`a` double", ["a"]),
        ("a float", "a int", "`a` float", ["a"]),
        ("a void", "a array<int>", "`a` array<int>", []),
        ("a timestamp", "a void", "`a` timestamp", []),
        ("a timestamp", "a timestamp_ntz", "`a` timestamp", ["a"]),
        ("a int", "a string", "`a` int", ["a"]),
        ("a array<int>", "a array<bigint>", "`a` array<long>", []),
        ("a array<int>", "a int", "`a` array<int>", ["a"]),
        ("a map<string,int>", "a map<string,date>", "`a` map<string,int>", ["a"]),
        (
            "a struct<x: int, `y.z`: string>",
            "a struct<x: bigint, w: struct<v: date>>",
            "`a` struct<`x`: long,`y.z`: string,`w`: struct<`v`: date>>",
            [],
        ),
        ("a struct<x: int, y: int>", "a struct<x: string, z: int>", "`a` struct<`x`: int,`y`: int,`z`: int>", ["x"]),
    ],
)
def test_columns_of_two_texts_hold_the_values_of_both(newer: str, older: str, both: str, differ: list[str]) -> None:
    found = list[str]()
    assert united(newer, older, found) == both
    assert found == differ
    assert united(both, older) == both, "again"


@given(st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=4, unique_by=lambda column: column[0].lower()))
def test_columns_are_what_they_were_beside_themselves(columns: list[tuple[str, str]]) -> None:
    text, differ = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in columns), list[str]()
    assert parse_ddl(united(text, text, differ)) == parse_ddl(text)
    assert not differ


@pytest.mark.parametrize(
    ("newer", "older", "changed"),
    [
        ("a bigint", "a int, b string", ""),
        ("a decimal(12,2)", "a decimal(5,2)", ""),
        ("a double", "a int", ""),
        ("a int", "a void", ""),
        ("a struct<x: bigint, w: int>", "a struct<x: int>", ""),
        ("a double, b int", "a bigint, b int", "`a` long"),
        ("a double", "a float", "`a` float"),
        ("a array<double>", "a array<float>", "`a` array<float>"),
        ("a struct<x: double>", "a struct<x: float, y: int>", "`a` struct<`x`: float,`y`: int>"),
        ("A binary", "a string", "`a` string"),
        ("a map<int,struct<x: int>>", "a map<string,struct<y: int>>", "`a` map<string,struct<`y`: int>>"),
    ],
)
def test_columns_whose_bodies_would_be_read_as_others_are_found(newer: str, older: str, changed: str) -> None:
    assert retyped(united(newer, older), older) == changed
