"""Tables that handlers of batches return: taken column by column, they are what they are row by row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.delivery.landing_rows import landing_rows, landings_of
from airflow_poison.delivery.returned import ReturnedBy
from airflow_poison.outputs.output import ONLY, RowSchema, as_bytes, divided, is_together, outputs_of, rows_of, rows_together, table_kept
from airflow_poison.values.errors import OutputRowError

COLUMNS: dict[str, Any] = {
    "n": pa.int64(),
    "small": pa.int8(),
    "x": pa.float64(),
    "text": pa.string(),
    "flag": pa.bool_(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "clock": pa.timestamp("us"),
    "money": pa.decimal128(5, 2),
}
OTHER_LAYOUTS: dict[str, Any] = {"text": [pa.large_string(), pa.string_view()], "raw": [pa.large_binary(), pa.binary_view()]}
VALUES = {
    "n": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-128, 127),
    "x": st.floats(allow_nan=False),
    "text": st.text(max_size=3),
    "flag": st.booleans(),
    "raw": st.binary(max_size=3),
    "day": st.dates(),
    "at": st.datetimes(timezones=st.just(UTC)),
    "clock": st.datetimes(),
    "money": st.decimals(-999, 999, places=2),
}


def fitting(*names: str, must: str = "") -> dict[str, RowSchema]:
    (declared,) = outputs_of("/out")
    columns = pa.schema([pa.field(name, COLUMNS.get(name, pa.int64()), nullable=name != must) for name in names])
    return {ONLY: RowSchema(replace(declared, schema=columns), None)}


def by_rows(table: pa.Table, lookup_ids: list[int], row_schemas: dict[str, RowSchema]) -> list[Any]:
    own, others = divided(table, lookup_ids, row_schemas, alone=True)
    assert not others
    return [rows_of(own[place], row_schemas, alone=True) if place in own else [] for place in range(len(lookup_ids))]


def together(table: Any, lookup_ids: list[int], row_schemas: dict[str, RowSchema]) -> list[Any] | None:
    """Return the rows of each message of those that travel together; None: they cannot."""
    kept = rows_together(table, lookup_ids, row_schemas, alone=True)
    if not kept:
        return None if kept is None else [[] for _ in lookup_ids]
    assert is_together(kept)
    name, owners, batch = table_kept(kept)
    assert owners.tolist() == sorted(owners.tolist(), key=lookup_ids.index)
    rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    of_each = [[row for row, owner in zip(rows, owners.tolist(), strict=True) if owner == number] for number in lookup_ids]
    return [[(name, own)] if own else [] for own in of_each]


@given(st.data())
def test_both_ways_say_the_same(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([*COLUMNS]), min_size=1, unique=True))
    there = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    lookup_ids = data.draw(st.lists(st.integers(1, 40), min_size=1, unique=True))
    of = data.draw(st.lists(st.sampled_from(lookup_ids), max_size=40))
    cells = {name: data.draw(st.lists(st.none() | VALUES[name], min_size=len(of), max_size=len(of))) for name in there}
    kinds = {name: data.draw(st.sampled_from([COLUMNS[name], *OTHER_LAYOUTS.get(name, ())])) for name in there}
    table = pa.table({"lookup_id": pa.array(of, pa.int64()), **{name: pa.array(cells[name], kinds[name]) for name in there}})

    assert together(table, lookup_ids, fitting(*names)) == by_rows(table, lookup_ids, fitting(*names))


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"lookup_id": [1, 9], "n": [1, 2]}),
        pa.table({"lookup_id": [1, None], "n": [1, 2]}),
        pa.table({"lookup_id": [1, 2], "n": pa.array([1, 2], pa.int32())}),
        pa.table({"lookup_id": [1, 2], "n": [1, 2], "other": [1, 2]}),
        pa.table({"n": [1, 2]}),
        {"n": 1},
        None,
    ],
    ids=["a stranger", "nobody's", "another type", "an unknown column", "no lookup_id", "a mapping", "nothing"],
)
def test_what_has_to_be_looked_at_row_by_row_is(table: Any) -> None:
    assert together(table, [1, 2], fitting("n")) is None


def test_a_null_where_a_value_must_be_is_found_row_by_row() -> None:
    table = pa.table({"lookup_id": [1, 2], "n": pa.array([1, None], pa.int64())})
    assert together(table, [1, 2], fitting("n", must="n")) is None
    with pytest.raises(OutputRowError, match="must have a value"):
        by_rows(table, [1, 2], fitting("n", must="n"))


def test_lookup_id_lands_where_the_output_has_it() -> None:
    table = pa.table({"lookup_id": [2, 1], "n": [20, 10]})
    assert together(table, [1, 2], fitting("lookup_id", "n")) == [[(ONLY, [(1, 10)])], [(ONLY, [(2, 20)])]]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("text", pa.array([b"ok", b"\xff"]).view(pa.string())),
        ("text", pa.array([b"ok", b"\xff"], pa.large_binary()).view(pa.large_string())),
        ("day", pa.array([0, 2**31 - 1], pa.int32()).view(pa.date32())),
        ("at", pa.array([0, -(2**63)]).view(pa.timestamp("us", "UTC"))),
        ("clock", pa.array([0, 2**62]).view(pa.timestamp("us"))),
        ("money", pa.array([Decimal(1), Decimal(10**5)], pa.decimal128(38, 2)).view(pa.decimal128(5, 2))),
        ("money", pa.array([Decimal(1), Decimal("0.001")], pa.decimal128(5, 3))),
        ("at", pa.array([0, 1]).view(pa.timestamp("ns", "UTC"))),
    ],
)
def test_a_value_that_is_none_of_its_type_is_found_row_by_row(name: str, bad: Any) -> None:
    table = pa.table({"lookup_id": pa.array([1, 2], pa.int64()), name: bad})
    assert together(table, [1, 2], fitting(name)) is None


def test_rows_that_travel_together_land_for_the_messages_that_they_count_for() -> None:
    """A later try of the claim may have other batches; rows of single messages stand between them in the order of delivery."""
    (output,) = outputs_of("/out", schema="n long, more long", provenance=True)
    fields: list[Any] = [("n", pa.int64()), ("more", pa.int64()), ("later", pa.string())]
    known = pa.schema(fields)
    together = rows_together(pa.table({"lookup_id": [1, 1, 2, 3], "n": [10, 11, 20, 30]}), [1, 2, 3], fitting("n", "more"), alone=True)
    alone = as_bytes(rows_of({"n": 40, "more": 4}, fitting("n", "more"), alone=True))
    assert together
    job: Any = SimpleNamespace(outputs=(output,), queue="orders", key="run")
    at = datetime(2026, 1, 1, tzinfo=UTC)

    assert landing_rows(job, [ReturnedBy([7], together), ReturnedBy([8], together)], lambda _: known, at) == []

    rows = landing_rows(job, [ReturnedBy((4,), alone), ReturnedBy([3, 1], together), ReturnedBy((5,), alone)], lambda _: known, at)

    (landing,) = landings_of(pa.concat_tables(rows))
    (batch,), (owners,) = landing.batches, landing.owners
    assert owners.tolist() == batch.column("_lookup_id").to_pylist() == [4, 1, 1, 3, 5]
    assert batch.column("n").to_pylist() == [40, 10, 11, 30, 40]
    assert batch.column("more").to_pylist() == [4, None, None, None, 4]
    assert batch.column("later").null_count == 5
