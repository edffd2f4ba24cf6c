"""Whole passes whose handlers take batches: frames of every kind, under retry cycles, with everything that a pass tells."""

from __future__ import annotations

import sys
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own
import polars as pl
import pyarrow as pa
import pytest

from airflow_poison import Message, Msmq4, PoisonRows, ServiceBroker
from airflow_poison.delivery.handler_wrappers import frame_handler
from airflow_poison.delivery.handlers import Batching, Transformation
from airflow_poison.testing import receive
from airflow_poison.values.errors import HandlerNotFoundError, SettingError
from airflow_poison.values.events import EventType

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=5), receive_error_handling="Move")
KINDS: dict[str, type] = {"arrow": pa.Table, "pandas": pd.DataFrame, "polars": pl.DataFrame}
COLUMNS = [
    "lookup_id",
    "message_id",
    "body",
    "group_id",
    "conversation_id",
    "message_type",
    "properties",
    "priority",
    "enqueued_at",
    "expires_at",
    "abort_count",
    "move_count",
    "crash_count",
]


def rows_of(frame: Any) -> list[dict[str, Any]]:
    if isinstance(frame, pa.Table):
        return frame.to_pylist()
    return list(frame.to_dict("records") if isinstance(frame, pd.DataFrame) else frame.to_dicts())


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_of_messages_has_their_columns(kind: str) -> None:
    seen: list[Any] = []
    messages = [Message(b"a", group_id="g", properties={"k": "v"}, priority=7), Message(b"b", priority=7)]

    assert receive(seen.append, messages, POLICY, batch=kind).places == ["processed", "processed"]

    [frame] = seen
    assert isinstance(frame, KINDS[kind])
    assert list(rows_of(frame)[0]) == COLUMNS
    first, second = rows_of(frame)
    assert (first["lookup_id"], bytes(first["body"]), first["group_id"], first["priority"]) == (1, b"a", "g", 7)
    assert first["properties"] in ([("k", "v")], {"k": "v"}, [{"key": "k", "value": "v"}])  # as each library has maps
    assert (second["lookup_id"], second["abort_count"], second["move_count"]) == (2, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_of_bodies_has_the_columns_of_the_schema(kind: str) -> None:
    seen: list[Any] = []
    messages = [{"carrier": "UA", "flight": 1}, {"carrier": "AA", "flight": "x"}, {"flight": 3}]

    found = receive(seen.append, messages, POLICY, batch=kind, schema="carrier string, flight int")

    assert found.places == ["processed", "poison", "processed"]
    assert rows_of(seen[0]) == [{"lookup_id": 1, "carrier": "UA", "flight": 1}, {"lookup_id": 3, "carrier": None, "flight": 3}]
    assert len(seen) == 1
    assert found[1].last_error is not None
    assert found[1].last_error.type == "airflow_poison.values.errors.BodyError"
    assert (found.passes[0].parked, found.passes[0].rollbacks, found.passes[1].poisoned) == (1, 2, 1)


def test_a_body_that_does_not_fit_can_be_given_up_at_once() -> None:
    from airflow_poison import errors

    found = receive(print, ["no JSON"], POLICY, batch="arrow", schema="a int", unprocessable=[errors.BodyError])
    assert (found.places, found.passes[0].rollbacks) == (["poison"], 1)


def test_the_counts_of_a_delivery_are_in_its_frame() -> None:
    seen: list[tuple[int, int, int]] = []

    def handler(frame: pa.Table) -> None:
        columns: list[Any] = [frame[name].to_pylist() for name in ("lookup_id", "abort_count", "move_count")]
        seen.extend(zip(*columns, strict=True))
        raise PoisonRows([number == 2 for number in frame["lookup_id"].to_pylist()])

    def mask(frame: pa.Table) -> None:
        if 2 in frame["lookup_id"].to_pylist():
            handler(frame)

    assert receive(mask, [b"a", b"b", b"c"], POLICY, batch="arrow").places == ["processed", "poison", "processed"]
    assert [each for each in seen if each[0] == 2] == [(2, 0, 0), (2, 1, 0), (2, 0, 2), (2, 1, 2)]


@pytest.mark.parametrize("policy", [POLICY, ServiceBroker()])
def test_an_unstable_batch_is_an_event_and_costs_nobody_anything(policy: Any) -> None:
    def crowded(frame: pa.Table) -> None:
        if frame.num_rows > 3:
            raise MemoryError("too many")

    found = receive(crowded, [b"x"] * 4, policy, batch="arrow")

    assert found.places == ["processed"] * 4
    [event] = [event for event in found.events if event.type is EventType.UNSTABLE_BATCH]
    assert (event.lookup_id, dict(event.details)) == (None, {"messages": "4", "first": "1", "last": "4", "error": "MemoryError: too many"})
    assert (found.passes[0].rollbacks, found.passes[0].settled) == (0, 4)
    assert found.passes[0].rows_handed >= 6


def test_a_pass_says_what_a_search_has_cost() -> None:
    def handler(frame: pa.Table) -> None:
        if 50 in frame["lookup_id"].to_pylist():
            raise ValueError("fifty")

    found = receive(handler, [b"x"] * 100, POLICY, batch="arrow")

    assert [outcome.lookup_id for outcome in found if outcome.place == "poison"] == [50]
    assert 5 <= found.passes[0].probes <= 10
    assert 200 <= found.passes[0].rows_handed <= 310
    from airflow_poison.passes.runs import account

    assert f"In batches {found.passes[0].rows_handed:,} messages were handed over; {found.passes[0].probes} probes for culprits." in account(
        found.passes[0]
    )


def test_a_handler_that_returns_a_generator_is_rolled_back() -> None:
    found = receive(lambda frame: (row for row in frame), [b"a", b"b"], POLICY, batch="arrow")
    assert found.places == ["poison", "poison"]
    assert found[0].last_error is not None
    assert "generator" in found[0].last_error.text


def test_frames_without_their_library_where_the_handler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(HandlerNotFoundError, match="polars cannot be imported where the handler runs"):
        frame_handler(print, Batching("polars"))


# What handlers of batches return


def landing(frame: pl.DataFrame) -> pl.DataFrame:
    if 3 in frame["lookup_id"]:
        raise PoisonRows({3: "three"})
    return frame.select("lookup_id", n=pl.col("n") * 10).filter(pl.col("n") != 20)


@pytest.mark.parametrize("policy", [POLICY, ServiceBroker()])
def test_returned_rows_land_once_with_their_messages(policy: Any) -> None:
    found = receive(landing, [{"n": n} for n in range(1, 7)], policy, batch="polars", schema="n int", output="landed", output_schema="n int")

    assert sorted(row["n"] for row in found.rows) == [10, *([] if found.halted else [40, 50, 60])]


def test_a_returned_row_that_does_not_fit_charges_its_message() -> None:
    def handler(frame: pa.Table) -> list[dict[str, Any]]:
        return [{"lookup_id": number, "n": "x" if number == 2 else number} for number in frame["lookup_id"].to_pylist()]

    found = receive(handler, [b"a", b"b", b"c"], POLICY, batch="arrow", output="landed", output_schema="n int, lookup_id long")

    assert found.places == ["processed", "poison", "processed"]
    assert found[1].last_error is not None
    assert "Column 'n'" in found[1].last_error.text
    assert sorted(row["lookup_id"] for row in found.rows) == [1, 3]


def test_rows_that_name_no_message_land_with_the_batch() -> None:
    found = receive(
        lambda frame: {"messages": frame.num_rows}, [b"a", b"b", b"c"], POLICY, batch="arrow", output="landed", output_schema="messages int"
    )
    assert [row["messages"] for row in found.rows] == [3]


def test_a_row_of_a_message_that_was_not_handed_over_is_a_failure() -> None:
    found = receive(lambda _frame: {"lookup_id": 99, "n": 1}, [b"a"], POLICY, batch="arrow", output="landed", output_schema="n int")
    assert found[0].last_error is not None
    assert "lookup_id=99, a message that was not handed over" in found[0].last_error.text


# A transformation in the handler's place, as far as no Spark is needed; tests/spark/test_testing.py has the rest


def clean(df: object) -> object:
    return df


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"handler": Transformation("shop:clean")},
            "handler='shop:clean' is not allowed; allowed: a function of a message; give one of a DataFrame as",
        ),
        ({"handler": "json:loads", "transform": clean}, "either handler or transform, and not both"),
        ({}, "handler=None is not allowed; allowed: an importable name such as 'shop.arrivals:land', or a function; or transform=..."),
        ({"handler": "json:loads", "evolve": "False"}, "evolve='False' is not allowed; allowed: True or False"),
        ({"handler": "json:loads", "mixes_rows": True}, "mixes_rows=True is not allowed; allowed: a setting of a transformation"),
        ({"handler": "json:loads", "spark": "local[2]"}, "spark='local[2]' is not allowed; allowed: a setting of a transformation"),
        ({"transform": clean}, "spark=None is not allowed; allowed: the session that runs the transformation, since none is active in this process"),
        ({"transform": clean, "spark": "local[2]"}, "spark='local[2]' is not allowed; allowed: a Spark session, like SparkSession.builder"),
        ({"transform": clean, "schema": "a flot"}, "'flot' stands"),
    ],
)
def test_what_does_not_go_with_a_transformation_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError) as raised:
        receive(given.get("handler"), ["{}"], POLICY, **{name: value for name, value in given.items() if name != "handler"})
    assert text in str(raised.value)


def test_a_transformation_without_pyspark_is_told_to_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SettingError, match=r"transform='a transformation' is not allowed; .*install pyspark where it is tried"):
        receive(None, ["{}"], POLICY, transform=clean)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
@pytest.mark.parametrize("nulls", [0, 1])
def test_a_frame_that_is_returned_as_it_came_lands_with_all_its_digits(kind: str, nulls: int) -> None:
    schema = "n bigint, f double, o boolean, l array<bigint>, s struct<n: bigint>, m decimal(38,2)"
    full = {"n": 2**60 + 1, "f": 0.1, "o": True, "l": [2**60 + 1, *[None] * nulls], "s": {"n": 2**60 + 1}, "m": "12345678901234567890.12"}

    received = receive(
        lambda frame: frame, [full, *[{}] * nulls], POLICY, batch=kind, schema=schema, output="landed", output_schema=f"lookup_id bigint, {schema}"
    )

    assert [dict(row) for row in received.rows] == [
        {"lookup_id": 1, **full, "m": Decimal("12345678901234567890.12")},
        *[dict.fromkeys(full) | {"lookup_id": 2}] * nulls,
    ]


@pytest.mark.parametrize("nulls", [0, 1])
def test_the_dtypes_of_a_pandas_frame_follow_from_the_schema_alone(nulls: int) -> None:
    seen: list[dict[str, str]] = []

    def keep(frame: Any) -> None:
        seen.append(frame.dtypes.astype(str).to_dict())

    receive(keep, [{"b": 1, "n": 2, "f": 1.5, "d": 1, "o": True, "l": [1]}, *[{}] * nulls], POLICY, batch="pandas", schema=PANDAS)

    assert seen == [{"lookup_id": "Int64", "b": "Int8", "n": "Int64", "f": "Float32", "d": "Float64", "o": "boolean", "l": "object"}]


PANDAS = "b byte, n bigint, f float, d double, o boolean, l array<int>"


def test_a_null_in_a_mask_of_a_pandas_frame_names_nothing() -> None:
    def check(frame: Any) -> None:
        if (late := frame["n"] > 10).any():
            raise PoisonRows(late)

    assert receive(check, [{"n": 1}, {}, {"n": 11}], POLICY, batch="pandas", schema="n bigint").places == ["processed", "processed", "poison"]
