"""Parts of a message that are fields of its body: for sources whose records are JSON and have no columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from airflow_poison.core import json_text
from airflow_poison.core.errors import InputError
from airflow_poison.core.mapping import cells, utf8
from airflow_poison.core.schema import message_schema
from airflow_poison.core.sources.source import ERROR, NO_BODY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.mapping import ColumnMapping


def with_fields(records: pa.RecordBatch, mapping: ColumnMapping, now: datetime) -> pa.RecordBatch:
    """Return the records with the parts of messages that a mapping names, taken from fields of their bodies; properties join those there are.

    A field that is not there is null; so are all fields of a record that has no body. A body that is no JSON object, and a field that cannot be what
    it is mapped to, is an error of its record, which keeps the body that arrived. So is a body that is mapped to a field that has no text.
    """
    import pyarrow as pa

    if not mapping.columns() and mapping.expires_after is None:
        return records
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
                fields = _object(body)
                made = cells(_chosen(body, fields, mapping.body), {**empty, **fields}, mapping, now)
            except InputError as error:
                errors[number] = str(error).removesuffix(" Nothing was sent.")
        rows.append(made)
    columns: dict[str, pa.Array[Any]] = dict(zip(records.schema.names, records.columns, strict=True))
    before = cast("list[list[tuple[str, str]] | None]", columns["properties"].to_pylist()) if "properties" in columns else [None] * len(rows)
    for name in dict.fromkeys(name for row in rows for name in row if name != "body"):
        values = [row.get(name) for row in rows]
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
    if isinstance(wanted, str):
        text = fields.get(wanted)
        if not isinstance(text, str):
            found = "null" if text is None else "no text"
            raise InputError(f"body={wanted!r}: it is {found}; a body is text. For JSON give a list: body=[{wanted!r}]")
        return utf8(text, f"body={wanted!r}")
    exact = dict(cast("json_text.Pairs", json_text.tree(body)))
    return json_text.written({name: exact.get(name) for name in wanted}).encode()


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json_text.natural_values(body)
    except json_text.JsonError as error:
        raise InputError(f"it is no JSON, of which fields are wanted: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"it is no JSON object, of which fields are wanted, but {type(found).__name__}")
    return found
