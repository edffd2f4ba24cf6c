"""The seam of sources: a position says how far one was taken, a plan says what is new behind it, and the rows come with a new position.

A take records the new position in the commit that adds the messages (``passes.take``): killed anywhere and run again, nothing is missing
and nothing comes twice. Planning and reading write nothing, neither here nor there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.sources.kafka_topic import unreplaced
from airflow_poison.values import json_text
from airflow_poison.values.errors import InputError, PoisonError, SettingError, SourceError
from airflow_poison.values.mapping import cells, utf8
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.sources.schemas import Schema
    from airflow_poison.values.mapping import ColumnMapping


def with_fields(records: pa.RecordBatch, mapping: ColumnMapping, now: datetime) -> pa.RecordBatch:
    """Return the records with the parts of messages that a mapping names, taken from fields of their bodies; properties join those there are.

    A field that is not there is null; so are all fields of a record that has no body. A body that is no JSON object, and a field that cannot be what
    it is mapped to, is an error of its record, which keeps the body that arrived, and its id. So is a body that is mapped to a field that has no
    text.
    """
    import pyarrow as pa

    if not mapping.columns() and mapping.expires_after is None:
        return records
    mapping.check(mapping.columns())
    records = unreplaced(records, mapping)
    empty = dict.fromkeys(mapping.columns())
    errors: list[str | None] = [None] * records.num_rows
    if ERROR in records.schema.names:
        errors = cast("list[str | None]", records.column(ERROR).to_pylist())
    rows: list[dict[str, Any]] = []
    bodies = cast("list[bytes | None]", records.column("body").to_pylist())
    without = records.column(NO_BODY).to_pylist() if NO_BODY in records.schema.names else [False] * records.num_rows
    for number, body in enumerate(bodies):
        made: dict[str, Any] = {}
        if errors[number] is None and body is not None and not without[number]:
            try:
                fields = _object(body, empty)
                made = cells(_chosen(body, fields, mapping.body), {**empty, **fields}, mapping, now)
            except Exception as error:  # noqa: BLE001  (of whatever type a value leads to)
                errors[number] = reason_of(error)
        rows.append(made)
    columns: dict[str, pa.Array[Any]] = dict(zip(records.schema.names, records.columns, strict=True))
    before = cast("list[list[tuple[str, str]] | None]", columns["properties"].to_pylist()) if "properties" in columns else [None] * len(rows)
    for name in dict.fromkeys(name for row in rows for name in row if name != "body"):
        values = [row.get(name) for row in rows]
        if name in columns and name != "properties":  # a malformed record has no fields, and keeps the id that says where it stood
            known = columns[name].to_pylist()
            values = [known[at] if errors[at] is not None and not row else row.get(name) for at, row in enumerate(rows)]
        if name == "properties":
            values = [[*dict([*(old or ()), *(new or ())]).items()] for old, new in zip(before, values, strict=True)]
        columns[name] = pa.array(values, message_schema().field(name).type)
    if mapping.body is not None:
        columns["body"] = pa.array([row.get("body", body) for row, body in zip(rows, bodies, strict=True)], pa.binary())
    columns[ERROR] = pa.array(errors, pa.string())
    return pa.record_batch(list(columns.values()), names=list(columns))


def _chosen(body: bytes, fields: Mapping[str, Any], wanted: str | tuple[str, ...] | None) -> bytes:
    """Return the fields of a body that a mapping chooses as the body, with the digits that they have there. Raises InputError."""
    if wanted is None:
        return body
    if not isinstance(wanted, str):
        return json_text.written({name: fields.get(name) for name in wanted}).encode()
    text = fields.get(wanted)
    if not isinstance(text, str) or isinstance(text, json_text.Number):
        found = "null" if text is None else "no text"
        raise InputError(f"body={wanted!r}: it is {found}; a body is text. For JSON give a list: body=[{wanted!r}]")
    return utf8(text, f"body={wanted!r}")


def alone(batch: pa.RecordBatch, make: Callable[[pa.RecordBatch], pa.RecordBatch], *, is_body: bool) -> Iterator[pa.RecordBatch]:
    """Yield what is made of records. One that nothing can be made of is malformed alone: halves are tried until it is found.

    :param is_body: the column ``body`` is what arrived; else all columns are.
    Raises what ``make`` raises for no records, SourceError and SettingError: these concern all.
    """
    try:
        made = make(batch)
    except (SourceError, SettingError):  # of a schema and its registry
        raise
    except Exception as error:  # noqa: BLE001  (of whatever type a library raises for a value)
        make(batch.slice(0, 0))
        if batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from alone(batch.slice(0, half), make, is_body=is_body)
            yield from alone(batch.slice(half), make, is_body=is_body)
            return
        made = _malformed(batch, error, is_body=is_body)
    yield made


def _malformed(batch: pa.RecordBatch, error: Exception, *, is_body: bool) -> pa.RecordBatch:
    """Return one record with an error and what there is of it."""
    import pyarrow as pa

    from airflow_poison.sources.rows import shown

    body = batch.column("body").cast(pa.binary())[0].as_py() if is_body and "body" in batch.schema.names else shown(batch, 0)
    known = batch.column(ERROR)[0].as_py() if ERROR in batch.schema.names else None
    return pa.record_batch({"body": pa.array([body], pa.binary()), ERROR: pa.array([known or reason_of(error)], pa.string())})


def reason_of(error: Exception) -> str:
    """Return an error of one record as it is recorded with it."""
    if isinstance(error, PoisonError):
        return str(error).removesuffix(" Nothing was sent.")
    return f"{type(error).__name__}: {error}"


def _object(body: bytes, wanted: Collection[str]) -> dict[str, Any]:
    """Return the fields of a body that are wanted; a number keeps its text. Raises InputError."""
    try:
        found = json_text.tree(body)
    except json_text.JsonError as error:
        raise InputError(f"it is no JSON, of which fields are wanted: {error}") from error
    if not isinstance(found, json_text.Pairs):
        raise InputError(f"it is no JSON object, of which fields are wanted, but {_KINDS.get(type(found), 'a text')}")
    names = [name for name, _ in found if name in wanted]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise InputError(f"its field {twice!r} is wanted, and stands twice in it")
    return {name: value for name, value in found if name in wanted}


_KINDS: dict[type, str] = {list: "an array", json_text.Number: "a number", bool: "a truth value", type(None): "null"}


ERROR = "poison.error"
"""The column that says what is wrong with a record; null where nothing is. No source has a column of its own of this name."""
NO_BODY = "poison.no_body"
"""The column that says, by true, that a record has no body and that this is right: its body is empty then, no schema decodes it, and no
mapping looks for fields in it."""

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def no_keys() -> pa.Table:
    """Return no keys: the columns ``key`` (text) and ``at`` (int64)."""
    import pyarrow as pa

    return pa.table({"key": pa.array([], pa.string()), "at": pa.array([], pa.int64())})


@dataclass(frozen=True, slots=True)
class Position:
    """How far a source has been taken.

    :param at: what the source itself says, plain JSON values; empty at the beginning.
    :param keys: asked for when needed: what has been taken where no order says it (names of files, ids within a window): a table with the columns
        ``key`` (text) and ``at`` (int64, whatever the source orders them by).
    """

    at: Mapping[str, JsonValue] = field(default_factory=dict)
    keys: Callable[[], pa.Table] = no_keys


@dataclass(frozen=True, slots=True)
class Reached:
    """A position after a take.

    :param at: takes the place of the earlier one.
    :param keys: are added to those taken before: the columns ``key`` and ``at``.
    :param keys_since: keys with a smaller ``at`` are forgotten. None: none is.
    """

    at: Mapping[str, JsonValue]
    keys: pa.Table | None = None
    keys_since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """What is new in a source.

    :param what: it in words, for logs: ``3 files, 12.1 MiB``, ``offsets 120 to 180 of 3 partitions``.
    :param batches: called once; yields the records. Columns: a sender's (``passes.send.SENT``), or, where the
        source has ``columns``, any, or a message's with the column
        ``ERROR``, which says what is wrong with a record; its body is what arrived, byte by byte.
    :param reached: called after the last batch: the position behind them.
    :param messages: how many there are at most, where that is known without reading.
    :param passed_over: what there is and is not taken, a sentence for each reason, with what to do. A take whose ``what`` is empty has nothing else.
    :param frame: called once, instead of ``batches``; returns the same records, in their order, as a DataFrame that Spark's executors read. None:
        they cannot be read there.
    """

    what: str
    batches: Callable[[], Iterator[pa.RecordBatch]]
    reached: Callable[[], Reached]
    messages: int | None = None
    frame: Callable[[SparkSession], DataFrame] | None = None
    passed_over: tuple[str, ...] = ()


class Source(ABC):
    """Where messages come from. A subclass is small: what names it, and what is new behind a position.

    Sources travel: they are made in DAG files, so making one reads nothing, connects to nothing and imports nothing heavy, and they can be pickled.
    """

    columns: bool = False
    """Whether records are rows with columns of their own, which a mapping makes messages of."""
    schema: Schema | None = None
    """What the bodies are checked against, or decoded with, before they are sent."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the source's position is kept under in a queue; two sources of one queue have two names."""

    @abstractmethod
    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        """Say what is new behind a position; None, or a take whose ``what`` is empty: nothing is. Reads little, writes nothing.

        :param limit: take at most so many messages, or the least number above it that can be taken (a file, a version).
        Raises SourceError for what cannot be read at all: no server, no rights, a position that the source has no more.
        """

    def acknowledge(self, position: Position) -> None:
        """Do at the source what may only be done when a position is recorded: remove or mark what was taken. By itself nothing.

        Called before each plan with the position that is recorded, and after the commit of a new one: twice has to be the same as once.
        Raises SourceError.
        """
        del position

    def between(self, start: str, end: str) -> Take:
        """Return what lies between two places, whatever was taken before: a backfill. Its position is not recorded.

        :param start: in the source's own words, included.
        :param end: excluded.
        Raises SourceError, InputError.
        """
        from airflow_poison.values.errors import InputError

        raise InputError(
            f"{type(self).__name__} cannot be taken from {start!r} to {end!r}: it has no order. Reset its position to take all of it again."
        )

    def describe(self, at: Mapping[str, JsonValue]) -> str:
        """Return a position in words, one line."""
        return ", ".join(f"{name}: {value}" for name, value in at.items()) or "the beginning"

    @property
    def asset_uri(self) -> str:
        """The name of the source for assets and lineage: ``kafka://host:9092/orders``. Asked after ``connected``. Empty: it is not reported."""
        return ""

    def connected(self, find: Callable[[str], Connection]) -> Source:
        """Return the source with the connections that it names looked up; itself when it names none.

        :param find: returns a connection by its id. Raises SourceError when there is none.
        """
        del find
        return self


@dataclass(frozen=True, slots=True)
class Connection:
    """What a named connection says, as Airflow keeps it. Its text shows no password.

    :param extra: its further fields.
    """

    conn_id: str
    kind: str = ""
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    path: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
