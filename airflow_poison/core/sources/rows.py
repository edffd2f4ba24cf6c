"""Rows of any columns as messages, by DuckDB. A row that cannot become a message is one with an error; the others go on.

The JSON of a body has the values that Spark's ``to_json`` writes: dates and instants (UTC) as text of ISO 8601, decimals with all their digits,
bytes as base64, NaN and infinity as text, nulls kept. Spark cuts instants to milliseconds; here one with smaller digits keeps them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_poison.core.errors import InputError
from airflow_poison.core.mapping import HIGHEST_PRIORITY, ColumnMapping, check_named_once, expires_at
from airflow_poison.core.schema import DEFAULT_PRIORITY, message_schema
from airflow_poison.core.sources.source import ERROR

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

JSON_TEXT = {b"poison.json": b"yes"}
"""Metadata of a column of text that is JSON, and becomes a part of a body as what it says."""
_DATES = "years 1 to 9999"


def to_messages(batch: pa.RecordBatch, mapping: ColumnMapping, now: datetime) -> pa.RecordBatch:
    """Return rows as messages: the column ``body``, those that are mapped, and ``ERROR``, null where nothing is wrong.

    A row with an error has what there is: the whole row as JSON for a body that is null, the default for a priority out of range.

    :param now: when times to live begin.
    Raises InputError for what concerns every row: a column that is not there, or whose type cannot be what it is mapped to.
    """
    import duckdb
    import pyarrow as pa

    names = batch.schema.names
    mapping.check(names)
    check_named_once(names if mapping.body is None else [name for name in names if name in mapping.columns()], "the rows")
    rows = _Rows(batch.schema, mapping)
    needed = mapping.columns() if isinstance(mapping.body, tuple) else names
    plain = pa.table({f"c{number}": _plain(batch.column(number), name) for number, name in enumerate(names) if name in needed})
    with duckdb.connect() as engine:
        try:
            engine.register("rows_of_source", plain)
            made = engine.sql(f"SELECT {rows.select(now)} FROM rows_of_source").to_arrow_table()
        except duckdb.Error as error:
            raise InputError(
                f"These rows cannot become messages: {str(error).splitlines()[0]} Their columns are {_there(batch.schema)}. "
                "Name those that the body needs: body=['<column>', ...]."
            ) from error
    wanted = pa.schema([*(message_schema().field(name) for name in made.schema.names if name != ERROR), pa.field(ERROR, pa.string())])
    columns = [_as(made.column(field.name), field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _as(column: pa.ChunkedArray[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Return a column of the query as one array of a message's type; instants come as microseconds."""
    import pyarrow as pa

    whole: pa.Array[Any] = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    return whole if whole.type == kind else whole.cast(kind)


def _plain(column: pa.Array[Any], name: str) -> pa.Array[Any]:
    """Return a column of types that DuckDB reads: no zones, no dictionaries."""
    import pyarrow as pa

    wanted = _plain_type(column.type)
    try:
        return column if wanted == column.type else column.cast(wanted, safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"Column {name!r}: its type {column.type} cannot be read here: {error}. Leave the column out, or cast it.") from error


def _plain_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(kind.field(number).name, _plain_type(kind.field(number).type)) for number in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if _is_list(kind):
        return pa.list_(_plain_type(kind.value_type))  # type: ignore[attr-defined]  # it is one of lists
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns" if kind.unit == "ns" else "us")  # of one with a zone: what a clock in UTC shows
    return pa.float32() if pa.types.is_float16(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


class _Rows:
    """The SQL that makes messages of rows whose columns are called c0, c1 and so on."""

    def __init__(self, schema: pa.Schema, mapping: ColumnMapping) -> None:
        self.schema, self.mapping = schema, mapping
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
            return _bytes(self._object(self.mapping.body or tuple(self.schema.names)))
        column, kind = self.mapping.body, self._kind(self.mapping.body)
        if not (_is_text(kind) or _is_bytes(kind)):
            raise self._wrong(column, "body", f"text or bytes; for JSON give a list: body=[{column!r}]")
        value = self._named(column)
        wrong.append(f"CASE WHEN {value} IS NULL THEN {_text(f'body={column!r}: it is null; a body is text or bytes.')} END")
        return f"coalesce({value if _is_bytes(kind) else _bytes(value)}, {_bytes(self._object(tuple(self.schema.names)))})"

    def _object(self, names: tuple[str, ...]) -> str:
        return f"json_object({', '.join(f'{_text(name)}, {self._value(name)}' for name in names)})"

    def _value(self, name: str) -> str:
        """Return what a column is in a JSON object."""
        if self.schema.field(self.schema.names.index(name)).metadata == JSON_TEXT:
            return f"coalesce(TRY_CAST({self._named(name)} AS JSON), to_json({self._named(name)}))"  # what is none is its text
        return self._json(self._named(name), self._kind(name))

    def _label(self, column: str, parameter: str) -> str:
        kind = self._kind(column)
        if _is_nested(kind) or _is_bytes(kind):
            raise self._wrong(column, parameter, "text, a number or a date: cast it")
        return f"{self._named(column)}::VARCHAR"

    def _priority(self, column: str, wrong: list[str]) -> str:
        number = self._number(column, "priority", "whole numbers")
        right = f"({number} BETWEEN 0 AND {HIGHEST_PRIORITY} AND {number} = floor({number}))"
        said = f"{_text(f'priority={column!r}: ')} || {self._named(column)}::VARCHAR || "
        refusal = said + _text(f" is no priority; expected a whole number from 0 to {HIGHEST_PRIORITY}.")
        wrong.append(f"CASE WHEN {self._named(column)} IS NOT NULL AND {right} IS NOT TRUE THEN {refusal} END")
        return f"CASE WHEN {right} THEN {number}::INTEGER ELSE {DEFAULT_PRIORITY} END"

    def _expires_at(self, after: str | timedelta, now: datetime, wrong: list[str]) -> str:
        if isinstance(after, timedelta):
            return f"{_micros(expires_at(now, after.total_seconds(), after))}::BIGINT"
        seconds = self._number(after, "expires_after", "a number of seconds")
        first, last = ((date - now).total_seconds() for date in (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)))
        right = f"(isfinite({seconds}) AND {seconds} BETWEEN {first} AND {last})"
        said = f"{_text(f'expires_after={after!r}: ')} || {self._named(after)}::VARCHAR || "
        refusal = said + _text(f" seconds from now are no date of the {_DATES}.")
        wrong.append(f"CASE WHEN {self._named(after)} IS NOT NULL AND {right} IS NOT TRUE THEN {refusal} END")
        part = f"round_even(({seconds} - trunc({seconds})) * 1000000, 0)::BIGINT"  # as timedelta rounds
        return f"CASE WHEN {right} THEN {_micros(now)} + trunc({seconds})::BIGINT * 1000000 + {part} END"

    def _properties(self, wrong: list[str]) -> str:
        pairs = []
        for column in self.mapping.properties:
            value, kind = self._named(column), self._kind(column)
            if _is_nested(kind):
                text = f"{self._json(value, kind)}::VARCHAR"
            elif _is_bytes(kind):
                text = f"TRY(decode({value}))"
                wrong.append(
                    f"CASE WHEN {value} IS NOT NULL AND {text} IS NULL THEN {_text(f'properties={column!r}: these bytes are no UTF-8.')} END"
                )
            else:
                text = f"{value}::VARCHAR"
            pairs.append(f"{{'k': {_text(column)}, 'v': {text}}}")
        return f"map_from_entries(list_filter([{', '.join(pairs)}], lambda pair: pair.v IS NOT NULL))"

    def _number(self, column: str, parameter: str, wanted: str) -> str:
        """Return a column as a number, null where it is none: what reads text files often takes a column with one wrong value for text."""
        import pyarrow as pa

        kind = self._kind(column)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind) or _is_text(kind)):
            raise self._wrong(column, parameter, f"{wanted}: cast it")
        return f"TRY_CAST({self._named(column)} AS DOUBLE)"

    def _named(self, column: str) -> str:
        return f"c{self.schema.names.index(column)}"

    def _kind(self, column: str) -> pa.DataType:
        import pyarrow as pa

        kind = self.schema.field(self.schema.names.index(column)).type
        value: pa.DataType = kind.value_type if pa.types.is_dictionary(kind) else kind
        return value

    def _wrong(self, column: str, parameter: str, next_step: str) -> InputError:
        return InputError(
            f"{parameter}={column!r}: the column is {self._kind(column)}; needed is {next_step}. "
            f"The columns are {_there(self.schema)}. Nothing was sent."
        )

    def _json(self, value: str, kind: pa.DataType) -> str:
        """Return an expression whose JSON is the value's."""
        import pyarrow as pa

        if pa.types.is_dictionary(kind):
            return self._json(value, kind.value_type)
        if pa.types.is_struct(kind):
            fields = (kind.field(number) for number in range(kind.num_fields))
            inner = ", ".join(
                f"{_text(field.name)}, {self._json(f'struct_extract_at({value}, {at})', field.type)}" for at, field in enumerate(fields, 1)
            )
            return f"CASE WHEN {value} IS NOT NULL THEN json_object({inner}) END"
        if pa.types.is_map(kind):
            return self._each(
                f"map_entries({value})", lambda e: f"{{'k': {e}.key::VARCHAR, 'v': to_json({self._json(f'{e}.value', kind.item_type)})}}", of=value
            )
        if _is_list(kind):
            return self._each(value, lambda e: self._json(e, kind.value_type))  # type: ignore[attr-defined]  # it is one of lists
        return _scalar_json(value, kind)

    def _each(self, values: str, one: Callable[[str], str], of: str | None = None) -> str:
        """Return a list with something done to each of its elements; for a map, of its entries, a map again."""
        element = f"e{next(self._depth)}"
        made = f"list_transform({values}, lambda {element}: {one(element)})"
        return made if of is None else f"CASE WHEN {of} IS NOT NULL THEN map_from_entries({made}) END"


def _scalar_json(value: str, kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        milli, micro, nano = (f"strftime({value}, '%Y-%m-%dT%H:%M:%S.{digits}')" for digits in ("%g", "%f", "%n"))
        made = f"CASE WHEN epoch_us({value}) % 1000 = 0 THEN {milli} ELSE {micro} END"
        if kind.unit == "ns":
            made = f"CASE WHEN epoch_ns({value}) % 1000 <> 0 THEN {nano} ELSE {made} END"
        return f"{made} || 'Z'" if kind.tz else made  # behind it: DuckDB miscounts what follows %n
    if pa.types.is_floating(kind):  # by way of its text: a float of 4 bytes is 0.1, not 0.10000000149011612
        odd = f"CASE WHEN isnan({value}) THEN '\"NaN\"' WHEN {value} > 0 THEN '\"Infinity\"' ELSE '\"-Infinity\"' END"
        return f"CASE WHEN isfinite({value}) THEN {value}::VARCHAR WHEN {value} IS NOT NULL THEN {odd} END::JSON"
    if _is_bytes(kind):
        return f"base64({value})"
    return value


def _is_nested(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind) or _is_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind))


def _there(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _bytes(text: str) -> str:
    return f"encode({text}::VARCHAR)"


def _micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
