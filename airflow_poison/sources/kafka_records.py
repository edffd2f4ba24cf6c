"""Records of Kafka as messages, column by column, and the way back: keys and headers are the same bytes as before.

Keys and headers are bytes; groups and properties are text. What is text stays as it is. Other bytes are base64 behind ``base64:``, a header without a
value is ``null:``, and text that looks like one of these is base64, too. A header that comes again has a number behind its name (``name#2``), and so
has a first one whose name ends in a number (``name#2#1``). A name that begins as properties of the product do has ``header.`` in front.
"""

from __future__ import annotations

import base64
import re
from binascii import Error as NoBase64Error
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.sources.source import NO_BODY
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import pyarrow as pa

    from airflow_poison.values.mapping import ColumnMapping

    Part = tuple[np.ndarray[Any, Any], pa.Array[Any], pa.Array[Any]]  # numbers of records, names and texts of properties

TOPIC, PARTITION, OFFSET, TIMESTAMP, TOMBSTONE = (f"kafka.{name}" for name in ("topic", "partition", "offset", "timestamp", "tombstone"))
"""The properties of a message that say which record it was."""
KEY = "kafka.key"
"""The property with the record's key, where a mapping has put something else into the group."""
HEADER = "header."
"""Begins the property of a header whose own name begins as properties of the product do."""
BASE64 = "base64:"
"""Begins the text of a key or header that is no text, or looks like one that is none."""
NULL = "null:"
"""The text of a header that has no value."""
_OWN = ("kafka.", "poison.")
_NUMBERED = re.compile(r"#[0-9]+\Z")
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
    """Yield headers as properties: see ``record_headers``, which is the inverse."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    pairs = cast("pa.StructArray", headers.flatten())
    if not len(pairs):
        return
    rows = np.repeat(np.arange(len(headers)), headers.value_lengths().fill_null(0).to_numpy())
    names, values = pairs.flatten()
    own = pc.match_substring_regex(names, rf"^({'|'.join(map(re.escape, (*_OWN, HEADER)))})|^\z")
    names = pc.if_else(own, pc.binary_join_element_wise(pa.scalar(HEADER), names, pa.scalar("")), names)  # type: ignore[call-overload]  # scalars may be
    codes = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    if len(np.unique(rows * len(pairs) + codes)) < len(pairs) or pc.any(pc.match_substring_regex(names, r"#[0-9]+\z")).as_py():
        names = pa.array(_apart(rows.tolist(), names.to_pylist()), pa.string())
    yield rows, names, _texts(cast("pa.BinaryArray", values)).fill_null(NULL)


def _apart(rows: Iterable[int], names: Iterable[str]) -> Iterator[str]:
    """Yield names of which no record has one twice."""
    seen = Counter[tuple[int, str]]()
    for row, name in zip(rows, names, strict=True):
        seen[row, name] += 1
        number = seen[row, name]
        yield f"{name}#{number}" if number > 1 or _NUMBERED.search(name) else name


def _texts(values: pa.BinaryArray) -> pa.Array[Any]:
    """Return bytes as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = values.cast(pa.string())
        plain = not pc.any(pc.match_substring_regex(found, rf"\x00|^{BASE64}|^{NULL}\z")).as_py()
    except pa.ArrowInvalid:
        plain = False
    return found if plain else pa.array([None if value is None else _text(value) for value in values.to_pylist()], pa.string())


def _text(value: bytes) -> str:
    """Return a key or a header as text; of bytes that are no text (UTF-8 without zeros), or look encoded, their base64 behind ``base64:``."""
    try:
        found = value.decode()
    except UnicodeDecodeError:
        found = "\0"
    encoded = "\0" in found or found.startswith(BASE64) or found == NULL
    return BASE64 + base64.b64encode(value).decode() if encoded else found


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


def unreplaced(records: pa.RecordBatch, mapping: ColumnMapping) -> pa.RecordBatch:
    """Return records that keep what a mapping of their bodies' fields replaces: the key in a property, a header under another name."""
    import pyarrow as pa

    if "group_id" not in records.schema.names or (mapping.group is None and not mapping.properties):
        return records
    before: Any = zip(records.column("group_id").to_pylist(), records.column("properties").to_pylist(), strict=True)
    cells: list[list[tuple[str, str]]] = []
    for key, pairs in before:
        kept = [(HEADER + name if name in mapping.properties else name, value) for name, value in pairs or ()]
        cells.append(kept if mapping.group is None else [*kept, (KEY, NULL if key is None else key)])
    place = records.schema.get_field_index("properties")
    return records.set_column(place, records.schema.field(place), pa.array(cells, records.schema.field(place).type))


# The way back ---------------------------------------------------------------------------------------------------------


def is_record(properties: Mapping[str, str | None]) -> bool:
    """Whether a message came from Kafka, as its properties say."""
    return properties.keys() >= {TOPIC, PARTITION, OFFSET}


def record_key(group_id: str | None, properties: Mapping[str, str | None]) -> bytes | None:
    """Return the key of the record that a message came from."""
    return _bytes(properties.get(KEY, group_id))


def record_group(group_id: str, properties: Mapping[str, str | None]) -> bytes:
    """Return a message's group as a key: where the group was the record's key, this key."""
    found = _bytes(group_id) if is_record(properties) and KEY not in properties else None
    return group_id.encode() if found is None else found


def record_headers(properties: Mapping[str, str | None]) -> list[tuple[str, bytes | None]]:
    """Return the headers of the record that a message came from, in their order; those that others have added to the message are among them."""
    return [(_NUMBERED.sub("", name).removeprefix(HEADER), _bytes(value)) for name, value in properties.items() if not name.startswith(_OWN)]


def own_properties(properties: Mapping[str, str | None]) -> dict[str, str]:
    """Return what the product says of a message that came from Kafka, but for what is part of the record itself."""
    return {name: value or "" for name, value in properties.items() if name.startswith(_OWN) and name not in {KEY, TOMBSTONE}}


def _bytes(text: str | None) -> bytes | None:
    """Return the key or header that a text stands for: the inverse of ``_text``. Text that only looks encoded is a text."""
    if text is None or text == NULL:
        return None
    if text.startswith(BASE64):
        try:
            return base64.b64decode(text.removeprefix(BASE64), validate=True)
        except (NoBase64Error, ValueError):
            pass
    return text.encode()
