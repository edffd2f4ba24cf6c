"""Records of Kafka as messages: an Arrow batch of them, column by column, whoever has read them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.core.schema import message_schema
from airflow_poison.core.sources.source import NO_BODY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    import pyarrow as pa

    Part = tuple[np.ndarray[Any, Any], pa.Array[Any], pa.Array[Any]]  # numbers of records, names and texts of properties

TOPIC, PARTITION, OFFSET, TIMESTAMP, TOMBSTONE = (f"kafka.{name}" for name in ("topic", "partition", "offset", "timestamp", "tombstone"))
"""The properties of a message that say which record it was."""
HEADER = "header."
"""Begins the property of a header whose own name begins as properties of the product do."""
BASE64 = "base64:"
"""Begins the text of a key or header that is no text."""
_OWN = ("kafka.", "poison.")
_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def to_columns(records: Sequence[Any]) -> pa.RecordBatch:
    """Return records of confluent-kafka, a column for each part."""
    import pyarrow as pa

    columns = {
        "key": pa.array([each.key() for each in records], pa.binary()),
        "value": pa.array([each.value() for each in records], pa.binary()),
        "partition": pa.array([each.partition() for each in records], pa.int32()),
        "offset": pa.array([each.offset() for each in records], pa.int64()),
        "timestamp": pa.array([each.timestamp()[1] for each in records], pa.int64()),
        "headers": _listed([each.headers() for each in records]),
    }
    return pa.record_batch(columns)


def to_messages(records: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Return records as messages: value, key, and properties: headers, and what says which record it is.

    :param records: ``key`` and ``value`` (bytes), ``partition``, ``offset``, ``timestamp`` (milliseconds since 1970) and ``headers`` (a list of
        ``key``, text, and ``value``, bytes): the columns of Spark's own ``kafka`` format, but for the unit of the time.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = records.num_rows
    values = cast("pa.BinaryArray", records.column("value"))
    partitions, offsets = records.column("partition").cast(pa.string()), records.column("offset").cast(pa.string())
    name = pa.repeat(pa.scalar(topic), count)
    every = [(TOPIC, name), (PARTITION, partitions), (OFFSET, offsets), (TIMESTAMP, _instants(records.column("timestamp")))]
    gone = np.flatnonzero(values.is_null())
    further = (*_headers(cast("pa.ListArray[Any]", records.column("headers"))), (gone, pa.repeat(TOMBSTONE, len(gone)), pa.repeat("true", len(gone))))
    return pa.record_batch(
        {
            "message_id": pc.binary_join_element_wise(name, partitions, offsets, pa.scalar("-")),  # type: ignore[call-overload]  # scalars may be
            "group_id": _texts(cast("pa.BinaryArray", records.column("key"))),
            "body": values.fill_null(b""),
            "properties": _properties([*further, *((np.arange(count), pa.repeat(key, count), items) for key, items in every)], count),
            NO_BODY: values.is_null(),
        },
        schema=pa.schema([*map(message_schema().field, ("message_id", "group_id", "body", "properties")), pa.field(NO_BODY, pa.bool_())]),
    )


def _properties(parts: Sequence[Part], count: int) -> pa.Array[Any]:
    """Return a map for each of so many records."""
    import numpy as np
    import pyarrow as pa

    rows = np.concatenate([rows for rows, _, _ in parts])
    keys, items = pa.concat_arrays([keys for _, keys, _ in parts]), pa.concat_arrays([items for _, _, items in parts])
    order = np.argsort(rows, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    maps: Any = pa.MapArray
    return cast("pa.Array[Any]", maps.from_arrays(pa.array(ends, pa.int32()), keys.take(order), items.take(order)))


def _listed(headers: Sequence[Sequence[tuple[str, bytes | str | None]] | None]) -> pa.Array[Any]:
    """Return the headers of records as Spark's own format has them."""
    import numpy as np
    import pyarrow as pa

    pairs = [pair for each in headers if each for pair in each]
    ends = np.concatenate([[0], np.cumsum([len(each) if each else 0 for each in headers])])
    values = [value.encode() if isinstance(value, str) else value for _, value in pairs]
    parts: list[pa.Array[Any]] = [pa.array([name for name, _ in pairs], pa.string()), pa.array(values, pa.binary())]
    lists: Any = pa.ListArray
    return cast("pa.Array[Any]", lists.from_arrays(pa.array(ends, pa.int32()), pa.StructArray.from_arrays(parts, ["key", "value"])))


def _headers(headers: pa.ListArray[Any]) -> Iterator[Part]:
    """Yield headers as properties. One that comes again has a number behind its name, the second ``name#2``."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    pairs = cast("pa.StructArray", headers.flatten())
    if not len(pairs):
        return
    rows = np.repeat(np.arange(len(headers)), headers.value_lengths().fill_null(0).to_numpy())
    names, values = pairs.flatten()
    own = pc.or_(*(pc.starts_with(names, pattern=each) for each in _OWN))
    names = pc.if_else(own, pc.binary_join_element_wise(pa.scalar(HEADER), names, pa.scalar("")), names)  # type: ignore[call-overload]  # scalars may be
    codes = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    if len(np.unique(rows * len(pairs) + codes)) < len(pairs):
        names = pa.array(_apart(rows.tolist(), names.to_pylist()), pa.string())
    yield rows, names, _texts(cast("pa.BinaryArray", values)).fill_null("")


def _apart(rows: Iterable[int], names: Iterable[str]) -> Iterator[str]:
    """Yield names of which no record has one twice."""
    seen: set[tuple[int, str]] = set()
    for row, name in zip(rows, names, strict=True):
        number, free = 1, name
        while (row, free) in seen:
            number += 1
            free = f"{name}#{number}"
        seen.add((row, free))
        yield free


def _texts(values: pa.BinaryArray) -> pa.Array[Any]:
    """Return bytes as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = values.cast(pa.string())
        plain = not pc.any(pc.match_substring(found, "\0")).as_py()
    except pa.ArrowInvalid:
        plain = False
    return found if plain else pa.array([None if value is None else _text(value) for value in values.to_pylist()], pa.string())


def _text(value: bytes) -> str:
    """Return a key or a header as text; of bytes that are no text (UTF-8 without zeros), their base64 behind ``base64:``."""
    try:
        found = value.decode()
    except UnicodeDecodeError:
        found = "\0"
    return BASE64 + base64.b64encode(value).decode() if "\0" in found else found


def _instants(found: pa.Array[Any]) -> pa.Array[Any]:
    """Return milliseconds since 1970 as text of ISO 8601; those that no calendar has as numbers."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = found.to_numpy(zero_copy_only=False)
    right = (numbers >= 0) & (numbers <= _LAST_MS)
    known = pa.array(np.where(right, numbers, 0)).cast(pa.timestamp("ms")).cast(pa.string())
    shown = pc.binary_join_element_wise(pc.replace_substring(known, " ", "T"), pa.scalar("Z"), pa.scalar(""))  # type: ignore[call-overload]  # scalars are allowed
    return cast("pa.Array[Any]", shown if right.all() else pc.if_else(pa.array(right), shown, pa.array(numbers).cast(pa.string())))
