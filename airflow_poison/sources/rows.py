"""Rows of any columns as messages, by DuckDB. A row that cannot become a message is one with an error; the others go on.

The JSON of a body has the values that Spark's ``to_json`` writes: dates and instants (UTC) as text of ISO 8601, decimals with all their digits,
bytes as base64, NaN and infinity as text, nulls kept. Spark cuts instants to milliseconds; here one with smaller digits keeps them. The JSON is put
together from texts: functions of DuckDB that make JSON of values read numbers as doubles.
"""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_poison.sources.source import ERROR
from airflow_poison.values import json_text
from airflow_poison.values.clock import EPOCH, text_of_days, text_of_micros
from airflow_poison.values.ddl import ddl_of_bodies
from airflow_poison.values.errors import InputError
from airflow_poison.values.json_text import Pairs
from airflow_poison.values.json_values import duration_text, json_value, name_of, number_or_text
from airflow_poison.values.libraries import np, pa, pc
from airflow_poison.values.mapping import HIGHEST_PRIORITY, ColumnMapping, check_fields_once, check_named_once, expires_at
from airflow_poison.values.schema import DEFAULT_PRIORITY, message_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    import duckdb

_Array = Any
"""An array of Arrow of any kind: what its stubs know of one kind they do not know of all."""
JSON_TEXT = {b"poison.json": b"yes"}
"""Metadata of a column of text that is JSON, and becomes a part of a body as what it says."""
ODD = "\x01poison.odd."
"""Begins the name of a column that has, as text, the values that are not of the type of the column that is named behind it and is null there."""
_DATES = "years 1 to 9999"


def to_messages(batch: pa.RecordBatch, mapping: ColumnMapping, now: datetime) -> pa.RecordBatch:
    """Return rows as messages: the column ``body``, those that are mapped, and ``ERROR``, null where nothing is wrong.

    A row with an error has what there is: the whole row as JSON for a body that is null, the default for a priority out of range, and in place of a
    value that no text can be made of, what is known of it.

    :param now: when times to live begin.
    Raises InputError for what concerns every row: a column that is not there, or whose type cannot be what it is mapped to.
    """
    import duckdb

    names = [name for name in batch.schema.names if not name.startswith(ODD)]
    mapping.check(names)
    wanted = names if mapping.body is None else mapping.columns()
    sent = [(place, name) for place, name in enumerate(batch.schema.names) if name in wanted]
    check_named_once([name for _, name in sent], "the rows")
    check_fields_once([batch.schema.field(place) for place, _ in sent], "the rows")
    rows = _Rows(batch.schema, mapping)
    needed = mapping.columns() if isinstance(mapping.body, tuple) else batch.schema.names
    odd = _Odd()
    plain = {
        f"c{number}": odd.without(name, batch.column(number), is_json=_is_json(batch.schema.field(number)))
        for number, name in enumerate(batch.schema.names)
        if name.removeprefix(ODD) in needed and name != mapping.body
    }
    if isinstance(mapping.body, str):
        plain["body"] = _bare(batch.column(batch.schema.names.index(mapping.body)))
    with _engine() as engine:
        try:
            engine.register("rows_of_source", pa.table(plain) if plain else pa.table({"c": pa.nulls(batch.num_rows)}))
            made = engine.sql(f"SELECT {rows.select(now)} FROM rows_of_source").to_arrow_table()
        except duckdb.Error as error:
            raise InputError(
                f"These rows cannot become messages: {str(error).splitlines()[0]} Their columns are {_there(batch.schema)}. "
                "Name those that the body needs: body=['<column>', ...]."
            ) from error
    schema = pa.schema([*(message_schema().field(name) for name in made.schema.names if name != ERROR), pa.field(ERROR, pa.string())])
    columns = {field.name: _as(made.column(field.name), field.type) for field in schema}
    if odd.errors:
        chosen = batch.select([name for name in names if name in needed])
        if not isinstance(mapping.body, str):
            columns["body"] = _put(columns["body"], {row: shown(chosen, row) for row in odd.errors})
        columns[ERROR] = _put(columns[ERROR], odd.errors)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


_engines: dict[int, duckdb.DuckDBPyConnection] = {}
"""By process: a child has no threads of its parent's. To make and to end one takes longer than 5,000 rows."""


def _engine() -> duckdb.DuckDBPyConnection:
    """Return a connection of its own to this process's DuckDB, which holds nothing."""
    import duckdb

    here = os.getpid()
    return (_engines.get(here) or _engines.setdefault(here, duckdb.connect())).cursor()


def columns_of_bodies(rows: pa.Schema) -> str:
    """Return the columns that the bodies of rows have, as DDL; empty where one is JSON, which is of no type."""
    fields = [field.with_type(_bare_type(field.type)) for field in rows if not field.name.startswith(ODD)]
    is_json = any(_is_json(field) or (isinstance(field.type, pa.BaseExtensionType) and field.type.extension_name == "arrow.json") for field in fields)
    return "" if is_json else ddl_of_bodies(pa.schema(fields))


def like_columns(rows: pa.RecordBatch, known: pa.Schema) -> pa.RecordBatch:
    """Return rows with the names of known columns, by which bodies are read, at any depth: names that differ in case alone are one for Spark.

    A float that is read as a double is written as one: it has more digits then.
    """
    named = named_as(rows.schema, known)
    if named != rows.schema:
        rows = pa.record_batch(_Named(rows, named))
    doubles = named_as(named, known, doubles=True)
    return rows if doubles == named else rows.cast(doubles)


class _Named:
    """Rows with other names: Arrow's own casts take columns of structs by their names."""

    def __init__(self, rows: Any, schema: Any) -> None:
        self._rows, self._schema = rows, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return what Arrow reads them by."""
        del requested_schema
        return self._schema.__arrow_c_schema__(), self._rows.__arrow_c_array__()[1]


def named_as(columns: pa.Schema, known: pa.Schema, *, doubles: bool = False) -> pa.Schema:
    """Return columns with the names of known ones, at any depth, where theirs differ in case alone.

    :param doubles: floats are doubles where the known ones are.
    """
    of: Any = pa.types

    def named(fields: Collection[pa.Field[Any]], others: Iterable[pa.Field[Any]]) -> list[pa.Field[Any]]:
        own, there = {field.name for field in fields}, {field.name.lower(): field for field in others}
        likes = [(field, there.get(field.name.removeprefix(ODD).lower())) for field in fields]
        return [field if like is None else as_known(field, like, own) for field, like in likes]

    def as_known(field: pa.Field[Any], like: pa.Field[Any], own: Collection[str]) -> pa.Field[Any]:
        name = ODD + like.name if field.name.startswith(ODD) else like.name
        return field.with_name(field.name if name in own else name).with_type(typed(field.type, like.type))

    def typed(kind: Any, like: Any) -> Any:
        if of.is_struct(kind) and of.is_struct(like):
            return pa.struct(named([*kind], like))
        if of.is_map(kind) and of.is_map(like):
            return pa.map_(typed(kind.key_type, like.key_type), kind.item_field.with_type(typed(kind.item_type, like.item_type)))
        if (of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind)) and of.is_list(like):
            item = kind.value_field.with_type(typed(kind.value_type, like.value_type))
            return pa.large_list(item) if of.is_large_list(kind) else pa.list_(item, kind.list_size if of.is_fixed_size_list(kind) else -1)
        return like if doubles and of.is_float32(kind) and of.is_float64(like) else kind

    return pa.schema(named([*columns], known))


def shown(batch: pa.RecordBatch, row: int) -> bytes:
    """Return what there is of a row as a JSON object; a value that JSON cannot hold is its text; bytes that are no text: ``{"base64": ...}``."""
    found = Pairs((name, _shown(batch.column(at).slice(row, 1))) for at, name in enumerate(batch.schema.names))
    return json_text.written(found).encode()


def _shown(one: _Array) -> object:  # noqa: PLR0911  (one line for each kind of type)
    """Return the value of an array of one as JSON has it."""
    one = _bare(one)
    kind = one.type
    if one.null_count or pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return Pairs((kind.field(at).name, _shown(one.field(at))) for at in range(kind.num_fields))
    if _is_list(kind):
        inner = _entries(one).flatten()
        if not pa.types.is_map(kind):
            return [_shown(inner.slice(at, 1)) for at in range(len(inner))]
        keys, values = inner.flatten()
        return Pairs((name_of(_shown(keys.slice(at, 1))), _shown(values.slice(at, 1))) for at in range(len(inner)))
    try:
        if _is_text(kind):
            raw: bytes = one.cast(pa.binary())[0].as_py()
            found = _utf8(raw)  # one that is no UTF-8 is no text here, so that no delivery takes it for one
            return found if isinstance(found, str) else Pairs([("base64", base64.b64encode(raw).decode())])
        if pa.types.is_interval(kind):
            months, days, nanos = one[0].as_py()
            return f"P{months}M{days}D{duration_text(nanos, 10**9)[1:]}"
        has_count = pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind)
        if has_count and (text := _far(_counts(one)[0].as_py(), kind)) is not None:
            return text
        return json_value(one[0].as_py(), number=number_or_text)
    except Exception:  # noqa: BLE001  # of whatever type: this is what is shown of a value that nothing else can be made of
        return one.to_string().strip("[]\n ")


def _far(count: int, kind: Any) -> str | None:
    """Return the text of a date, an instant or a time that Python does not have; None: it has it."""
    first, last = _bounds(kind)
    if not first <= count <= last:
        return f"{count} {kind}"
    if pa.types.is_date(kind):
        return text_of_days(count if pa.types.is_date32(kind) else count // (_DAY * 1_000))
    if pa.types.is_time(kind) or kind.unit == "ns" or _FIRST <= count // _PER_SECOND[kind.unit] < _LAST:
        return None
    return f"{text_of_micros(count * 1_000_000 // _PER_SECOND[kind.unit]).replace(' ', 'T')}{'Z' if kind.tz else ''}"


def _put(column: _Array, new: Mapping[int, Any]) -> _Array:

    values: list[Any] = column.to_pylist()
    for row, value in new.items():
        values[row] = value
    return pa.array(values, column.type)


def _as(column: pa.ChunkedArray[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Return a column of the query as one array of a message's type; instants come as microseconds."""
    whole: pa.Array[Any] = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    return whole if whole.type == kind else whole.cast(kind)


# Columns as DuckDB reads them -----------------------------------------------------------------------------------------


def _bare_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary, of runs, of an extension; JSON and UUIDs stay what they are."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _bare_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name not in _TEXTS:
        return pa.bool_() if kind.extension_name == "arrow.bool8" else _bare_type(kind.storage_type)
    return kind


def _bare(array: _Array) -> _Array:
    """Return values without what wraps them (``_bare_type``)."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = _bare(array.dictionary)
        views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}  # Arrow has no take of them
        return values.cast(views.get(values.type, values.type)).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        return _bare(pc.call_function("run_end_decode", [array]))
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name not in _TEXTS:
        storage = array.storage
        return storage.cast(pa.bool_()) if kind.extension_name == "arrow.bool8" else _bare(storage)
    return array


class _Odd:
    """Values that DuckDB cannot read, or reads as others: each is an error of its row, and null for DuckDB.

    :ivar errors: what is wrong with a row, by its number.
    """

    def __init__(self) -> None:
        self.errors: dict[int, str] = {}
        self._name = ""

    def without(self, name: str, column: pa.Array[Any], *, is_json: bool = False) -> pa.Array[Any]:
        """Return a column as DuckDB reads it: types that it has, nulls for what it cannot read."""
        self._name = name
        try:
            made = self._of(column, None)
        except pa.ArrowNotImplementedError as error:
            raise InputError(f"column {name!r} is {column.type}, which Arrow itself cannot read: {error}. Cast it. Nothing was sent.") from error
        return _as_json(made) if is_json else made

    def _of(self, array: _Array, rows: np.ndarray[Any, Any] | None) -> _Array:  # noqa: PLR0911  (one line for each kind of type)
        """:param rows: the number of the row of each value; None: one value a row."""
        array = _bare(array)
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            storage = array.storage
            return _as_json(self._of(storage, rows)) if kind.extension_name == "arrow.json" else _python_texts(array)
        if pa.types.is_struct(kind):
            return self._struct(array, rows)
        if _is_list(kind):
            return self._list(array, rows)
        if _is_text(kind):
            return self._text(array, rows)
        if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
            return self._temporal(array, rows)
        if pa.types.is_decimal(kind):
            plain = kind.bit_width <= 128 and 0 <= kind.scale < kind.precision  # noqa: PLR2004  (of others DuckDB has none, or writes .5 for 0.5)
            return array.cast(pa.decimal128(kind.precision, kind.scale)) if plain else array.cast(pa.string())
        if pa.types.is_float16(kind):
            return array.cast(pa.float32())
        return array if _is_read(kind) else _python_texts(array)

    def _struct(self, array: _Array, rows: np.ndarray[Any, Any] | None) -> pa.Array[Any]:

        fields = [self._of(field, rows) for field in array.flatten()]
        if not fields:  # DuckDB has no structs without fields
            return pa.array([value or None for value in array.is_valid().to_pylist()], pa.bool_())
        return pa.StructArray.from_arrays(fields, names=[f"f{at}" for at in range(len(fields))], mask=array.is_null())

    def _list(self, array: _Array, rows: np.ndarray[Any, Any] | None) -> _Array:

        array = _entries(array)  # DuckDB's maps have each key once
        lengths = pc.call_function("coalesce", [pc.list_value_length(array), pa.scalar(0, pa.int64())]).to_numpy(zero_copy_only=False)
        inside = np.repeat(np.arange(len(array)) if rows is None else rows, lengths)
        values = self._of(array.flatten(), inside)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, mask=array.is_null())

    def _text(self, array: pa.Array[Any], rows: np.ndarray[Any, Any] | None) -> pa.Array[Any]:

        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            values = [None if value is None else _utf8(value) for value in array.cast(pa.binary()).to_pylist()]
            wrong = [at for at, value in enumerate(values) if isinstance(value, UnicodeDecodeError)]
            self._note(wrong, rows, lambda at: f"its text is no UTF-8: {values[at]}")
            return pa.array([None if isinstance(value, UnicodeDecodeError) else value for value in values], pa.string())
        return array

    def _temporal(self, array: _Array, rows: np.ndarray[Any, Any] | None) -> _Array:

        kind = array.type
        whole = _counts(array)
        if pa.types.is_duration(kind):
            return pa.array([None if each is None else duration_text(each, _PER_SECOND[kind.unit]) for each in whole.to_pylist()], pa.string())
        first, last = _bounds(kind)
        bounds: Any = pc.min_max(whole).as_py()
        if bounds["min"] is not None and (bounds["min"] < first or bounds["max"] > last):
            right: _Array = pc.and_(pc.greater_equal(whole, pa.scalar(first)), pc.less_equal(whole, pa.scalar(last)))
            problem = f"is beyond what {kind} can hold here" if pa.types.is_time(kind) else f"({kind}) is no instant that can be written here"
            wrong = [at for at, fits in enumerate(right.to_pylist()) if fits is False]
            self._note(wrong, rows, lambda at: f"{whole[at].as_py()} {problem}")
            array = pc.if_else(right, array, pa.scalar(None, kind))
        if pa.types.is_date(kind):
            return array.cast(pa.date32())
        return array.cast(pa.timestamp("ns" if kind.unit == "ns" else "us")) if pa.types.is_timestamp(kind) else array

    def _note(self, wrong: list[int], rows: np.ndarray[Any, Any] | None, why: Callable[[int], str]) -> None:
        for at in wrong:
            row = at if rows is None else int(rows[at])
            self.errors.setdefault(row, f"column {self._name!r}: {why(at)}")


_TEXTS = ("arrow.json", "arrow.uuid")
"""Extensions of Arrow whose values have a text of their own."""
_FIRST, _LAST = -62_135_596_800, 253_402_300_800
"""Seconds from 1970 to the first instant of a calendar of Python, and to the first one behind it."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -106_751_991, 106_751_990
"""Days whose instants DuckDB has, in microseconds since 1970. Its dates reach farther; their ends stand for infinity there."""


def _bounds(kind: Any) -> tuple[int, int]:
    """Return the least and the greatest number of a type of dates, instants or times that DuckDB reads as what it is."""
    if pa.types.is_date32(kind):
        return -(2**31) + 2, 2**31 - 2
    if pa.types.is_date64(kind):
        return (-(2**31) + 2) * _DAY * 1_000, (2**31 - 2) * _DAY * 1_000
    if pa.types.is_time(kind):
        return 0, _DAY * _PER_SECOND[kind.unit] - 1
    if kind.unit == "ns":
        return _FIRST_DAY // 1_000 * _DAY * 10**9 + _DAY * 10**9, 2**63 - 2
    return _FIRST_DAY * _DAY * _PER_SECOND[kind.unit], _LAST_DAY * _DAY * _PER_SECOND[kind.unit]


def _entries(array: _Array) -> _Array:
    """Return maps as lists of their keys and values; other lists as they are."""
    kind = array.type
    return array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))) if pa.types.is_map(kind) else array


def _counts(array: _Array) -> _Array:
    """Return what dates, times and instants count."""
    return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())  # noqa: PLR2004  (bits)


def _utf8(value: bytes) -> str | UnicodeDecodeError:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        return error


def _as_json(texts: pa.Array[Any]) -> pa.Array[Any]:
    """Return texts as JSON: one that is JSON as it is, any other as a text."""
    values = texts.to_pylist()
    return pa.array([None if each is None else each if _is_json_text(each) else json_text.written(each) for each in values], pa.string())


def _is_json_text(text: str) -> bool:
    return json_text.syntax_error(text.encode()) is None


def _python_texts(array: _Array) -> pa.Array[Any]:
    """Return values of a type that DuckDB does not have as JSON."""
    return pa.array([None if not each.is_valid else json_text.written(_shown(array.slice(at, 1))) for at, each in enumerate(array)], pa.string())


def _is_read(kind: pa.DataType) -> bool:
    """Say whether DuckDB reads a type as it is."""
    return bool(pa.types.is_null(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_bytes(kind))


def _is_list(kind: pa.DataType) -> bool:

    kinds = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view", "map")
    return any(getattr(pa.types, f"is_{each}")(kind) for each in kinds)


def _is_json(field: pa.Field[Any]) -> bool:
    return bool(field.metadata == JSON_TEXT)


class _Rows:
    """The SQL that makes messages of rows whose columns are called c0, c1 and so on."""

    def __init__(self, schema: pa.Schema, mapping: ColumnMapping) -> None:
        self.schema, self.mapping = schema, mapping
        self.names = [name for name in schema.names if not name.startswith(ODD)]
        self._depth = count()

    def select(self, now: datetime) -> str:
        """Return what is selected, with the names of a message's columns."""
        wrong: list[str] = []
        made = {"body": self._body(wrong)}
        texts = {"group_id": "group", "message_id": "message_id", "message_type": "message_type", "conversation_id": "conversation"}
        for name, parameter in texts.items():
            column = getattr(self.mapping, parameter)
            if column is not None:
                made[name] = self._label(column, parameter)
        if self.mapping.priority is not None:
            made["priority"] = self._priority(self.mapping.priority, wrong)
        if self.mapping.properties:
            made["properties"] = self._properties(wrong)
        if self.mapping.expires_after is not None:
            made["expires_at"] = self._expires_at(self.mapping.expires_after, now, wrong)
        made[ERROR] = f"nullif(concat_ws(' ', {', '.join(wrong)}), '')" if wrong else "NULL::VARCHAR"
        return ", ".join(f'{expression} AS "{name}"' for name, expression in made.items())

    def _body(self, wrong: list[str]) -> str:
        if not isinstance(self.mapping.body, str):
            return f"encode({self._object(self.mapping.body or tuple(self.names))})"
        column, kind = self.mapping.body, self._kind(self.mapping.body)
        if not (_is_text(kind) or _is_bytes(kind)):
            raise self._wrong(column, "body", f"text or bytes; for JSON give a list: body=[{column!r}]")
        whole = f"encode({self._object(tuple(name for name in self.names if name != column), column)})"
        given = ["body" if _is_bytes(kind) else "encode(body)", *([f"encode({self._named(ODD + column)})"] if self._has_odd(column) else [])]
        value = f"coalesce({', '.join(given)})"
        wrong.append(f"CASE WHEN {value} IS NULL THEN {_text(f'body={column!r}: it is null; a body is text or bytes.')} END")
        return f"coalesce({value}, {whole})"

    def _object(self, names: tuple[str, ...], of_null: str | None = None) -> str:
        """Return the JSON of some columns, in the order of all.

        :param of_null: one more, which is null.
        """
        wanted = [name for name in self.schema.names if name in {*names, of_null}] if of_null is not None else names
        return _object((name, self._value(name) if name != of_null else _text("null")) for name in wanted)

    def _value(self, name: str) -> str:
        """Return what a column is in a JSON object."""
        field = self.schema.field(self.schema.names.index(name))
        made = self._named(name) if _is_json(field) else self._json(self._named(name), field.type)
        odd = (f"to_json({self._named(ODD + name)})::VARCHAR",) if self._has_odd(name) else ()
        return f"coalesce({', '.join((*odd, made))}, 'null')"

    def _as_text(self, column: str) -> str:
        """Return a column as text: as JSON has it, without the quotes of a text."""
        kind = self._kind(column)
        if _is_json(self.schema.field(self.schema.names.index(column))) or pa.types.is_temporal(kind) or pa.types.is_floating(kind):
            made = self._value(column)
            return f"CASE WHEN starts_with({made}, '\"') THEN json_extract_string({made}, '$') WHEN {made} <> 'null' THEN {made} END"
        odd = (self._named(ODD + column),) if self._has_odd(column) else ()
        return f"coalesce({', '.join((*odd, f'{self._named(column)}::VARCHAR'))})"

    def _label(self, column: str, parameter: str) -> str:
        kind = self._kind(column)
        if _is_nested(kind) or _is_bytes(kind):
            raise self._wrong(column, parameter, "text, a number or a date: cast it")
        return self._as_text(column)

    def _priority(self, column: str, wrong: list[str]) -> str:
        number = self._number(column, "priority", "whole numbers")
        right = f"({number} BETWEEN 0 AND {HIGHEST_PRIORITY} AND {number} = floor({number}))"
        beginning = f"{_text(f'priority={column!r}: ')} || {self._as_text(column)} || "
        refusal = beginning + _text(f" is no priority; expected a whole number from 0 to {HIGHEST_PRIORITY}.")
        wrong.append(f"CASE WHEN {self._as_text(column)} IS NOT NULL AND {right} IS NOT TRUE THEN {refusal} END")
        return f"CASE WHEN {right} THEN {number}::INTEGER ELSE {DEFAULT_PRIORITY} END"

    def _expires_at(self, after: str | timedelta, now: datetime, wrong: list[str]) -> str:
        if isinstance(after, timedelta):
            return f"{_micros(expires_at(now, after.total_seconds(), after))}::BIGINT"
        seconds = self._number(after, "expires_after", "a number of seconds")
        first, last = ((date - now).total_seconds() for date in (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)))
        right = f"(isfinite({seconds}) AND {seconds} BETWEEN {first} AND {last})"
        beginning = f"{_text(f'expires_after={after!r}: ')} || {self._as_text(after)} || "
        refusal = beginning + _text(f" seconds from now are no date of the {_DATES}.")
        wrong.append(f"CASE WHEN {self._as_text(after)} IS NOT NULL AND {right} IS NOT TRUE THEN {refusal} END")
        part = f"round_even(({seconds} - trunc({seconds})) * 1000000, 0)::BIGINT"  # as timedelta rounds
        return f"CASE WHEN {right} THEN {_micros(now)} + trunc({seconds})::BIGINT * 1000000 + {part} END"

    def _properties(self, wrong: list[str]) -> str:
        pairs = []
        for column in self.mapping.properties:
            value, kind = self._named(column), self._kind(column)
            if _is_nested(kind):
                text = self._json(value, kind)
            elif _is_bytes(kind):
                text = f"TRY(decode({value}))"
                wrong.append(
                    f"CASE WHEN {value} IS NOT NULL AND {text} IS NULL THEN {_text(f'properties={column!r}: these bytes are no UTF-8.')} END"
                )
            else:
                text = self._as_text(column)
            pairs.append(f"{{'k': {_text(column)}, 'v': {text}}}")
        return f"map_from_entries(list_filter([{', '.join(pairs)}], lambda pair: pair.v IS NOT NULL))"

    def _number(self, column: str, parameter: str, wanted: str) -> str:
        """Return a column as a number, null where it is none: what reads text files often takes a column with one wrong value for text."""
        kind = self._kind(column)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind) or _is_text(kind)):
            raise self._wrong(column, parameter, f"{wanted}: cast it")
        return f"TRY_CAST({self._as_text(column) if self._has_odd(column) else self._named(column)} AS DOUBLE)"

    def _has_odd(self, column: str) -> bool:
        return ODD + column in self.schema.names

    def _named(self, column: str) -> str:
        return "body" if column == self.mapping.body else f"c{self.schema.names.index(column)}"

    def _kind(self, column: str) -> pa.DataType:
        return _bare_type(self.schema.field(self.schema.names.index(column)).type)

    def _wrong(self, column: str, parameter: str, next_step: str) -> InputError:
        return InputError(
            f"{parameter}={column!r}: the column is {self._kind(column)}; needed is {next_step}. "
            f"The columns are {_there(self.schema)}. Nothing was sent."
        )

    def _json(self, value: str, kind: pa.DataType) -> str:
        """Return an expression that is the JSON of a value as text, null for null."""
        kind = _bare_type(kind)
        if pa.types.is_struct(kind):
            fields = (kind.field(number) for number in range(kind.num_fields))
            made = _object((field.name, self._json_or_null(f"struct_extract_at({value}, {at})", field.type)) for at, field in enumerate(fields, 1))
            return f"CASE WHEN {value} IS NOT NULL THEN {made} END"
        if pa.types.is_map(kind):
            return self._each(
                value, "{}", lambda e: f"concat({self._key(f'{e}.f0', kind.key_type)}, ':', {self._json_or_null(f'{e}.f1', kind.item_type)})"
            )
        if _is_list(kind):
            return self._each(value, "[]", lambda e: self._json_or_null(e, kind.value_type))  # type: ignore[attr-defined]  # it is one of lists
        return _scalar_json(value, kind)

    def _json_or_null(self, value: str, kind: pa.DataType) -> str:
        return f"coalesce({self._json(value, kind)}, 'null')"

    def _key(self, value: str, kind: pa.DataType) -> str:
        """Return a key of a map as the name of a field: what is no text in JSON is its JSON in quotes."""
        made = self._json(value, kind)
        return made if _is_text(kind) else f"CASE WHEN starts_with({made}, '\"') THEN {made} ELSE to_json({made})::VARCHAR END"

    def _each(self, values: str, around: str, one: Callable[[str], str]) -> str:
        """Return the JSON of a list, whose elements an expression makes."""
        element = f"e{next(self._depth)}"
        made = f"array_to_string(list_transform({values}, lambda {element}: {one(element)}), ',')"
        return f"CASE WHEN {values} IS NOT NULL THEN concat('{around[0]}', {made}, '{around[1]}') END"


def _object(members: Iterable[tuple[str, str]]) -> str:
    """Return an expression that is the JSON of an object as text.

    :param members: names, and expressions that are the JSON of their values.
    """
    parts = [part for at, (name, made) in enumerate(members) for part in (_text(f"{',' if at else '{'}{json_text.written(name)}:"), made)]
    return f"concat({', '.join(parts)}, '}}')" if parts else "'{}'"


def _scalar_json(value: str, kind: pa.DataType) -> str:
    """Return an expression that is the JSON of a value that is no list, struct or map (``_Odd`` made its column) as text, null for null."""
    if pa.types.is_timestamp(kind):
        days = _iso_day(value)
        milli, micro, nano = (f"concat({days}, strftime({value}, 'T%H:%M:%S.{digits}')" for digits in ("%g", "%f", "%n"))
        zone = ", 'Z')" if kind.tz else ")"  # apart from the digits: DuckDB miscounts what follows %n
        made = f"CASE WHEN epoch_us({value}) % 1000 = 0 THEN {milli}{zone} ELSE {micro}{zone} END"
        if kind.unit == "ns":
            made = f"CASE WHEN epoch_ns({value}) % 1000 <> 0 THEN {nano}{zone} ELSE {made} END"
        return f"CASE WHEN {value} IS NOT NULL THEN concat('\"', {made}, '\"') END"
    if pa.types.is_date(kind):
        return f"'\"' || {_iso_day(value)} || '\"'"
    if pa.types.is_time(kind):
        return f"'\"' || {value}::VARCHAR || '\"'"
    if pa.types.is_floating(kind):
        odd = f"CASE WHEN isnan({value}) THEN '\"NaN\"' WHEN {value} > 0 THEN '\"Infinity\"' ELSE '\"-Infinity\"' END"
        return f"CASE WHEN isfinite({value}) THEN {value}::VARCHAR WHEN {value} IS NOT NULL THEN {odd} END"
    if _is_bytes(kind):
        return f"'\"' || base64({value}) || '\"'"
    return f"to_json({value})::VARCHAR" if _is_text(kind) or pa.types.is_duration(kind) else f"{value}::VARCHAR"


def _iso_day(value: str) -> str:
    """Return an expression of the day of a date or instant; ISO 8601 has a sign before years that are not of four digits."""
    far = f"printf('%+05d', year({value})) || strftime({value}, '-%m-%d')"
    return f"CASE WHEN year({value}) BETWEEN 0 AND 9999 THEN strftime({value}, '%Y-%m-%d') ELSE {far} END"


def _is_nested(kind: pa.DataType) -> bool:

    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind) or _is_list(kind))


def _is_text(kind: pa.DataType) -> bool:

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind))


def _there(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)
