"""A body means the same in every batch and in a transformation: each row of docs/reference/bodies.md, through all of them."""

from __future__ import annotations

import ast
import json
import re
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd  # type: ignore[import-untyped]  # its stubs are no dependency
import pytest

from airflow_poison import Msmq4
from airflow_poison.testing import receive
from airflow_poison.values.ddl import parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.values.message import Message

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "bodies.md"
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(minutes=5))


class Row(NamedTuple):
    """A row of a table of the page: a body, and what the column of its type has; None: it is refused."""

    kind: str
    body: bytes
    expected: str | None


def rows_of_the_page() -> list[Row]:
    """Return the rows of both tables. A value stands in the column of its type."""
    found: list[Row] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if not (cells[0].startswith("`") and re.match(r"`|refused", cells[-1])):
            continue
        expected = None if cells[-1].startswith("refused") else code(cells[-1])
        if len(cells) == 2:
            found.append(Row("string", ast.literal_eval(code(cells[0])), expected))
        elif len(cells) == 3:
            body = b'{"' + column_of(code(cells[0])).encode() + b'": ' + code(cells[1]).encode() + b"}"
            found.append(Row(code(cells[0]), body, expected))
    return found


def code(cell: str) -> str:
    return re.match(r"`(.*?)`", cell)[1]  # type: ignore[index]


def column_of(kind: str) -> str:
    return "s" if kind == "string" else "c_" + re.sub(r"\W+", "_", kind)


ROWS = rows_of_the_page()
KINDS = list(dict.fromkeys(row.kind for row in ROWS))
SCHEMA = ", ".join(f"{column_of(kind)} {kind}" for kind in KINDS)


def shown(value: Any, kind: Any) -> str:  # noqa: PLR0911  (one line for each type)
    """Return a value as the page shows it, whichever library it is of."""
    import pyarrow as pa

    of: Any = pa.types
    if value is None or value is pd.NA or value is pd.NaT:
        return "null"
    if of.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else [(each["key"], each["value"]) if isinstance(each, dict) else each for each in value]
        return "{" + ", ".join(f"{shown(key, kind.key_type)}: {shown(each, kind.item_type)}" for key, each in pairs) + "}"
    if of.is_struct(kind):
        return "{" + ", ".join(f"{field.name}: {shown(value[field.name], field.type)}" for field in kind) + "}"
    if of.is_list(kind):
        return "[" + ", ".join(shown(each, kind.value_type) for each in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if of.is_boolean(kind):
        return "true" if value else "false"
    if isinstance(value, date | datetime):
        return value.isoformat()
    return repr(value) if isinstance(value, bytes) else str(value)


def seen(places: list[str], cells: dict[int, dict[str, Any]]) -> list[str | None]:
    """Return what became of each row; None: it was refused.

    :param cells: by lookup id.
    """
    schema = parse_ddl(SCHEMA)
    for lookup_id, row in cells.items():
        mine = column_of(ROWS[lookup_id - 1].kind)
        assert {shown(row[name], schema.field(name).type) for name in schema.names if name != mine} == {"null"}
    kinds = [schema.field(column_of(row.kind)).type for row in ROWS]
    return [
        None if place == "poison" else shown(cells[number][column_of(ROWS[number - 1].kind)], kinds[number - 1])
        for number, place in enumerate(places, 1)
    ]


def wrong(found: list[str | None]) -> list[tuple[Row, str | None]]:
    """Return the rows that are other than the page says."""
    return [(row, each) for row, each in zip(ROWS, found, strict=True) if row.expected != each]


def plain_rows(frame: Any) -> list[dict[str, Any]]:
    if isinstance(frame, pd.DataFrame):
        return [dict(zip(frame.columns, cells, strict=True)) for cells in zip(*(frame[name].tolist() for name in frame.columns), strict=True)]
    return list(frame.rows(named=True) if hasattr(frame, "rows") else frame.to_pylist())


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_a_body_is_in_a_batch_what_the_page_says(kind: str) -> None:
    cells: dict[int, dict[str, Any]] = {}

    def keep(frame: Any) -> None:
        cells.update({row["lookup_id"]: row for row in plain_rows(frame)})

    received = receive(keep, [row.body for row in ROWS], POLICY, batch=kind, schema=SCHEMA)

    assert wrong(seen(received.places, cells)) == []


def test_a_body_is_in_a_transformation_what_the_page_says(spark: SparkSession) -> None:
    def keep(df: DataFrame) -> DataFrame:
        return df.selectExpr("lookup_id AS id", "*").drop("c_void")  # Parquet has no void

    received = receive(
        None, [row.body for row in ROWS], POLICY, transform=keep, schema=SCHEMA, spark=spark, output="landed", output_schema=f"id long, {SCHEMA}"
    )

    assert wrong(seen(received.places, {row["id"]: {"c_void": None, **row} for row in received.rows})) == []


def refused_in_a_handler() -> set[tuple[str, bytes]]:
    """Return types and values that the page says a handler's output refuses beside the others."""
    found = set()
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if cells[0] == "refused":
            found.add((code(cells[1]), b'{"' + column_of(code(cells[1])).encode() + b'": ' + code(cells[2]).encode() + b"}"))
    return found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "void"])
def test_a_handler_lands_what_the_page_says_or_its_output_refuses_the_row(kind: str) -> None:
    name, rows = column_of(kind), [row for row in ROWS if row.kind == kind and row.body.startswith((b"{", b" {", b"\xef"))]

    def land(message: Message) -> dict[str, Any]:
        return {"n": message.lookup_id, name: message.json().get(name)}

    received = receive(land, [row.body for row in rows], POLICY, output="landed", output_schema=f"n bigint, {name} {kind}")

    landed = {row["n"]: shown(row[name], parse_ddl(f"{name} {kind}").field(0).type) for row in received.rows}
    others = {(kind, row.body) for number, row in enumerate(rows, 1) if row.expected != landed.get(number)}
    stand_twice = {(kind, row.body) for row in rows if b'"other": 1, "other"' in row.body}
    assert {row.body for number, row in enumerate(rows, 1) if number in landed and row.expected != landed[number]} == set()
    assert others == {each for each in refused_in_a_handler() if each[0] == kind} | stand_twice


def test_the_page_has_every_type_and_takes_and_refuses_values_of_each() -> None:
    from airflow_poison.values.ddl import _NAMES

    assert {re.sub(r"\W.*", "", kind) for kind in KINDS} == {*_NAMES.values(), "decimal", "array", "map", "struct"}
    assert {row.kind for row in ROWS if row.expected is None} >= {*_NAMES.values()}
