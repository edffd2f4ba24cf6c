"""Records of Kafka as messages: an Arrow batch of them, column by column."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.core.schema import message_schema
from airflow_poison.core.sources.source import NO_BODY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

TOPIC, PARTITION, OFFSET, TIMESTAMP, TOMBSTONE = (f"kafka.{name}" for name in ("topic", "partition", "offset", "timestamp", "tombstone"))
"""The properties of a message that say which record it was."""
HEADER = "header."
"""Begins the property of a header whose own name begins as properties of the product do."""
BASE64 = "base64:"
"""Begins the text of a key or header that is no text."""
_OWN = ("kafka.", "poison.")
_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def to_batch(records: Sequence[Any], topic: str) -> pa.RecordBatch:
    """Return records as messages: value, key, and properties: headers, and what says which record it is."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(records)
    values = [each.value() for each in records]
    gone = [value is None for value in values]
    partitions = pa.array([each.partition() for each in records], pa.int64()).cast(pa.string())
    offsets = pa.array([each.offset() for each in records], pa.int64()).cast(pa.string())
    name = pa.repeat(pa.scalar(topic), count)
    further = [(number, *pair) for number, each in enumerate(records) if (headers := each.headers()) for pair in _headers(headers)]
    further += [(number, TOMBSTONE, "true") for number in np.flatnonzero(gone).tolist()] if any(gone) else []
    said = [name, partitions, offsets, _instants([each.timestamp()[1] for each in records])]
    return pa.record_batch(
        {
            "message_id": pc.binary_join_element_wise(name, partitions, offsets, pa.scalar("-")),  # type: ignore[call-overload]  # scalars may be
            "group_id": texts([each.key() for each in records]),
            "body": pa.array([b"" if value is None else value for value in values], pa.binary()),
            "properties": _properties(said, further, count),
            NO_BODY: pa.array(gone, pa.bool_()),
        },
        schema=pa.schema([*map(message_schema().field, ("message_id", "group_id", "body", "properties")), pa.field(NO_BODY, pa.bool_())]),
    )


def _properties(said: Sequence[pa.Array[Any]], further: Sequence[tuple[int, str, str]], count: int) -> pa.Array[Any]:
    """Return a map for each record: what is further said of it, and what is said of all."""
    import numpy as np
    import pyarrow as pa

    names = pa.array([TOPIC, PARTITION, OFFSET, TIMESTAMP]).take(np.repeat(np.arange(4), count))
    keys = pa.concat_arrays([pa.array([key for _, key, _ in further], pa.string()), names])
    items = pa.concat_arrays([pa.array([item for _, _, item in further], pa.string()), *said])
    rows = np.concatenate([np.array([row for row, _, _ in further], np.int64), np.tile(np.arange(count), 4)])
    order = np.argsort(rows, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    maps: Any = pa.MapArray
    return cast("pa.Array[Any]", maps.from_arrays(pa.array(ends, pa.int32()), keys.take(order), items.take(order)))


def _headers(headers: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield headers as properties. One that comes again has a number behind its name, the second ``name#2``."""
    seen: dict[str, str] = {}
    for header, value in headers:
        name = f"{HEADER}{header}" if header.startswith(_OWN) else header
        number, free = 1, name
        while free in seen:
            number += 1
            free = f"{name}#{number}"
        seen[free] = text(value) if value is not None else ""
    yield from seen.items()


def texts(values: Sequence[bytes | str | None]) -> pa.Array[Any]:
    """Return bytes as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pa.array(values, pa.binary()).cast(pa.string())
        plain = not pc.any(pc.match_substring(found, "\0")).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        plain = False
    return found if plain else pa.array([None if value is None else text(value) for value in values], pa.string())


def text(value: bytes | str) -> str:
    """Return a key or a header as text; of bytes that are no text (UTF-8 without zeros), their base64 behind ``base64:``."""
    value = value.encode() if isinstance(value, str) else bytes(value)
    try:
        found = value.decode()
    except UnicodeDecodeError:
        found = "\0"
    return BASE64 + base64.b64encode(value).decode() if "\0" in found else found


def _instants(found: Sequence[int]) -> pa.Array[Any]:
    """Return milliseconds since 1970 as text of ISO 8601; those that no calendar has as numbers."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = np.array(found, np.int64)
    right = (numbers >= 0) & (numbers <= _LAST_MS)
    known = pa.array(np.where(right, numbers, 0)).cast(pa.timestamp("ms")).cast(pa.string())
    shown = pc.binary_join_element_wise(pc.replace_substring(known, " ", "T"), pa.scalar("Z"), pa.scalar(""))  # type: ignore[call-overload]  # scalars are allowed
    return cast("pa.Array[Any]", shown if right.all() else pc.if_else(pa.array(right), shown, pa.array(numbers).cast(pa.string())))
