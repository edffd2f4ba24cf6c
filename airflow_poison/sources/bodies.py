"""Records and rows as messages, one that cannot become one alone; parts of a message that are fields of its body; rows of data frames in memory."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.sources.kafka_topic import unreplaced
from airflow_poison.sources.rows import JSON_TEXT, shown, to_messages
from airflow_poison.sources.source import ERROR, NO_BODY
from airflow_poison.values import json_text
from airflow_poison.values.data_frames import columns_of_frame, is_frame, read_once
from airflow_poison.values.errors import InputError, PoisonError, SettingError, SourceError
from airflow_poison.values.json_values import check_text, json_value, number_or_text, utf8
from airflow_poison.values.libraries import pa
from airflow_poison.values.mapping import BATCH, ColumnMapping, cells, check_named_once, check_several, rows_to_batches
from airflow_poison.values.schema import message_schema
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from datetime import datetime

    from airflow_poison.sources.schemas import Schema


def with_fields(records: pa.RecordBatch, mapping: ColumnMapping, now: datetime) -> pa.RecordBatch:
    """Return the records with the parts of messages that a mapping names, taken from fields of their bodies; properties join those there are.

    A field that is not there is null; so are all fields of a record that has no body. A body that is no JSON object, and a field that cannot be what
    it is mapped to, is an error of its record, which keeps the body that arrived, and its id. So is a body that is mapped to a field that has no
    text.
    """
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


def batches_of(messages: Iterable[object], mapping: ColumnMapping, now: datetime) -> Iterator[pa.RecordBatch]:
    """Yield messages of Python values (``rows_to_batches``), or of data frames in memory: one, or several, such as a generator of Arrow's batches.

    A row of a frame that cannot become a message has an ``ERROR``. Raises InputError for what concerns every row.
    """
    if not isinstance(mapping, ColumnMapping):
        raise InputError(f"mapping={mapping!r}: expected a ColumnMapping, for example ColumnMapping(body='text'). Nothing was sent.")
    if is_frame(messages):
        yield from _of_frame(messages, mapping, now)
        return
    check_several(messages)
    rows = iter(messages)
    first = [*islice(rows, 1)]
    if not any(map(is_frame, first)):
        yield from rows_to_batches(chain(first, rows), mapping, now)
        return
    for number, frame in enumerate(chain(first, rows)):
        if not is_frame(frame):
            raise InputError(f"messages[{number}] is {type(frame).__name__}; expected a data frame, as the first one is. Nothing was sent.")
        yield from _of_frame(frame, mapping, now)


def _of_frame(frame: Any, mapping: ColumnMapping, now: datetime) -> Iterator[pa.RecordBatch]:

    try:
        frame = read_once(frame)
        columns = columns_of_frame(frame)
    except ValueError as error:
        raise InputError(f"The rows cannot be read: {error}. Nothing was sent.") from error
    if not columns and (number := len(frame)):
        raise InputError(f"the data frame has {counted(number, 'row')} and no column to make messages of. Nothing was sent.")
    check_named_once([name for name, _ in columns], "the data frame")
    made = [_of_objects(name, found, mapping) if isinstance(found, list) else (pa.field(name, found.type), found) for name, found in columns]
    rows = pa.Table.from_arrays([cells for _, cells in made], schema=pa.schema([field for field, _ in made]))
    mapping.check(rows.column_names)
    for batch in rows.to_batches(max_chunksize=BATCH):
        yield from alone(batch, lambda each: to_messages(each, mapping, now), is_body=False)


def _of_objects(name: str, values: list[Any], mapping: ColumnMapping) -> tuple[pa.Field[Any], pa.Array[Any]]:
    """Return values of types of their own as a column: of text where all are text, else of JSON. Raises InputError for one that has none."""
    are_text = all(isinstance(value, str | None) for value in values)
    if name == mapping.body and not are_text:
        odd = next((value for value in values if not isinstance(value, str | bytes | None)), None)
        if odd is not None:
            raise InputError(f"body={name!r}: a row has {type(odd).__name__} there; a body is text or bytes. For JSON give a list: body=[{name!r}].")
        return pa.field(name, pa.binary()), pa.array([value.encode() if isinstance(value, str) else value for value in values], pa.binary())
    try:
        texts = values if are_text else [None if each is None else _json_or_text(each) for each in values]
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InputError(f"column {name!r} cannot become JSON: {error}. Convert its values. Nothing was sent.") from error
    raw = [None if text is None else text.encode("utf-8", "surrogatepass") for text in texts]  # half of a pair is an error of its row
    return pa.field(name, pa.string(), metadata=None if are_text else JSON_TEXT), pa.array(raw, pa.binary()).view(pa.string())


def _json_or_text(value: object) -> str:
    """Return the JSON of a value; of one with half of a surrogate pair, which has none, a text that has one, too."""
    try:
        check_text(value)
    except UnicodeEncodeError:
        return f"{value!a}\ud800"
    return json_text.written(json_value(value, number_or_text))


def decoded(records: pa.RecordBatch, schema: Schema | None) -> pa.RecordBatch:
    """Return the records with what the schema makes of their bodies. One that it refuses keeps its bytes."""
    if schema is None or "body" not in records.schema.names:
        return records
    errors: list[str | None] = [None] * records.num_rows
    if ERROR in records.schema.names:
        errors = cast("list[str | None]", records.column(ERROR).to_pylist())
    without = records.column(NO_BODY).to_pylist() if NO_BODY in records.schema.names else [False] * records.num_rows
    bodies: list[bytes | None] = []
    for number, body in enumerate(records.column("body").cast(pa.binary()).to_pylist()):
        made = body
        if body is not None and errors[number] is None and not without[number]:
            try:
                made = schema.decode(body)
            except (SourceError, SettingError):  # of the registry or the schema, not of the record
                raise
            except Exception as error:  # noqa: BLE001  # of whatever type a library raises for bytes
                errors[number] = reason_of(error)
        bodies.append(made)
    columns = dict(zip(records.schema.names, records.columns, strict=True))
    columns |= {"body": pa.array(bodies, pa.binary()), ERROR: pa.array(errors, pa.string())}
    return pa.record_batch(list(columns.values()), names=list(columns))


def _malformed(batch: pa.RecordBatch, error: Exception, *, is_body: bool) -> pa.RecordBatch:
    """Return one record with an error and what there is of it."""
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
