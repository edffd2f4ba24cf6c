"""A Kafka topic as a client sees it: its id, its offsets, and ranges of its records as Arrow batches. Errors say what to do.

Records of Kafka as messages, column by column, and the way back: keys and headers are the same bytes as before.

Keys and headers are bytes; groups and properties are text. What is text stays as it is. Other bytes are base64 behind ``base64:``, a header without a
value is ``null:``, and text that looks like one of these is base64, too. A header that comes again has a number behind its name (``name#2``), and so
has a first one whose name ends in a number (``name#2#1``). A name that begins as properties of the product do has ``header.`` in front.
"""

from __future__ import annotations

import base64
import logging
import re
import time
from binascii import Error as NoBase64Error
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.sources.source import NO_BODY
from airflow_poison.values.errors import PoisonError, SourceError
from airflow_poison.values.libraries import np, pa, pc
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from airflow_poison.values.mapping import ColumnMapping

    Part = tuple[np.ndarray[Any, Any], pa.Array[Any], pa.Array[Any]]  # numbers of records, names and texts of properties

_log = logging.getLogger(__name__)

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
    rows = np.concatenate([rows for rows, _, _ in parts])
    keys, items = pa.concat_arrays([keys for _, keys, _ in parts]), pa.concat_arrays([items for _, _, items in parts])
    order = np.argsort(rows, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    maps: Any = pa.MapArray
    return cast("pa.Array[Any]", maps.from_arrays(pa.array(ends, pa.int32()), keys.take(order), items.take(order)))


def _listed(headers: Sequence[Sequence[tuple[str, bytes | str | None]] | None]) -> pa.Array[Any]:
    """Return the headers of records as Spark's own format has them."""
    pairs = [pair for each in headers if each for pair in each]
    ends = np.concatenate([[0], np.cumsum([len(each) if each else 0 for each in headers])])
    values = [value.encode() if isinstance(value, str) else value for _, value in pairs]
    parts: list[pa.Array[Any]] = [pa.array([name for name, _ in pairs], pa.string()), pa.array(values, pa.binary())]
    lists: Any = pa.ListArray
    return cast("pa.Array[Any]", lists.from_arrays(pa.array(ends, pa.int32()), pa.StructArray.from_arrays(parts, ["key", "value"])))


def _headers(headers: pa.ListArray[Any]) -> Iterator[Part]:
    """Yield headers as properties: see ``record_headers``, which is the inverse."""
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
    numbers = found.to_numpy(zero_copy_only=False)
    right = (numbers >= 0) & (numbers <= _LAST_MS)
    known = pa.array(np.where(right, numbers, 0)).cast(pa.timestamp("ms")).cast(pa.string())
    shown = pc.binary_join_element_wise(pc.replace_substring(known, " ", "T"), pa.scalar("Z"), pa.scalar(""))  # type: ignore[call-overload]  # scalars are allowed
    return cast("pa.Array[Any]", shown if right.all() else pc.if_else(pa.array(right), shown, pa.array(numbers).cast(pa.string())))


def unreplaced(records: pa.RecordBatch, mapping: ColumnMapping) -> pa.RecordBatch:
    """Return records that keep what a mapping of their bodies' fields replaces: the key in a property, a header under another name."""
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


_READERS = frozenset(
    {"group.id", "group.instance.id", "group.protocol", "group.remote.assignor", "auto.offset.reset", "isolation.level"}
) | frozenset({"enable.auto.commit", "enable.auto.offset.store", "auto.commit.interval.ms", "session.timeout.ms", "heartbeat.interval.ms"})
"""Settings of consumers that an Airflow connection may have: reading here depends on none of them, and other clients warn of them."""
_READERS_FETCH = frozenset({"max.poll.interval.ms", "partition.assignment.strategy", "check.crcs", "enable.partition.eof"})
_READERS_PREFIXES = ("fetch.", "queued.m")
_MOST_ROWS, _LEAST_ROWS, _FIRST_ROWS = 10_000, 16, 1_000
_BYTES = 32 << 20
_CRITICAL = 2
"""The level of librdkafka's own log, where no other one is wanted: it writes a line for each try to connect, and what matters is in our errors."""
_PAUSE = 0.2
"""Seconds that a look for records lasts where fewer are there than asked for."""
_LARGEST, _SMALLEST = 1_000_000, 1_000
"""What librdkafka's ``message.max.bytes`` is by default, and at least."""
Ranges = dict[int, tuple[int, int]]
"""Offsets by partition: the first, and the one behind the last."""


def clients() -> Any:
    """Return the module confluent_kafka. Raises SourceError where it is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise SourceError(
            f"Kafka needs the package confluent-kafka, which cannot be imported ({error}). Install it: pip install 'airflow-poison[kafka]'. "
            "Nothing was sent."
        ) from error
    return confluent_kafka


def error_text_of(error: Exception) -> str:
    """Return what an error of the client says; of errors of other kinds with the type."""
    kafka = clients()
    if isinstance(error, kafka.KafkaException):
        return str(error.args[0].str() if isinstance(error.args[0], kafka.KafkaError) else error.args[0])
    return f"{type(error).__name__}: {error}"


@dataclass(slots=True)
class Topic:
    """A topic.

    :param settings: of librdkafka.
    :param patience: seconds without an answer or a record after which it is an error.
    """

    settings: Mapping[str, Any]
    name: str
    committed: bool
    patience: float
    _reported: list[str] = field(default_factory=list)

    def identity(self) -> tuple[str, list[int]]:
        """Return the topic's id, which another topic of the same name does not have, and its partitions. Raises SourceError."""
        kafka = clients()
        found = self._admin(lambda admin, wait: admin.describe_topics(kafka.TopicCollection([self.name]), request_timeout=wait)[self.name].result())
        topic_id = str(found.topic_id) if found.topic_id is not None else ""
        return topic_id, sorted(partition.id for partition in found.partitions)

    def largest(self) -> int | None:
        """Return the topic's ``max.message.bytes``, of a batch of records; None where this user has no right to ask."""
        kafka = clients()
        asked = kafka.admin.ConfigResource(kafka.admin.ConfigResource.Type.TOPIC, self.name)
        try:
            found = self._admin(lambda admin, wait: next(iter(admin.describe_configs([asked], request_timeout=wait).values())).result())
            return int(found["max.message.bytes"].value)
        except (SourceError, KeyError, ValueError):
            return None

    def offsets(self, partitions: Collection[int], place: str | int, *, committed: bool | None = None) -> dict[int, int]:
        """Return an offset of each partition: the first (``earliest``), the one behind the last (``latest``), or the first from a time on.

        :param place: a time is milliseconds since 1970; -1: there is none.
        :param committed: what open transactions have written does not count.
        Raises SourceError.
        """
        kafka = clients()
        spec = kafka.admin.OffsetSpec
        wanted = {"earliest": spec.earliest, "latest": spec.latest}[place]() if isinstance(place, str) else spec.for_timestamp(place)
        level = kafka.IsolationLevel
        isolation = level.READ_COMMITTED if (self.committed if committed is None else committed) else level.READ_UNCOMMITTED
        asked = {kafka.TopicPartition(self.name, number): wanted for number in partitions}
        if not asked:
            return {}

        def ask(admin: Any, wait: float) -> dict[int, int]:
            answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=wait)
            return {where.partition: future.result().offset for where, future in answers.items()}

        return cast("dict[int, int]", self._admin(ask))

    def records(self, ranges: Ranges, reached: dict[int, int], most: Mapping[int, int] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of ranges of offsets as messages. A range ends where the client stands behind it, whatever is missing in it.

        :param reached: gets the offset behind what was read, by partition.
        :param most: so many records of each partition.
        Raises SourceError when a record cannot be had, or nothing comes any more.
        """
        kafka = clients()
        reading = _Reading(dict(ranges), dict(most) if most is not None else None, reached)
        reached.update({number: first for number, (first, _) in ranges.items()})
        consumer = self._made(kafka.Consumer, self.reader_settings())
        try:
            consumer.assign([kafka.TopicPartition(self.name, number, first) for number, (first, _) in ranges.items()])
            yield from self._read(kafka, consumer, reading)
        except PoisonError:
            raise
        except Exception as error:
            raise self.failed(error) from error
        finally:
            with suppress(Exception):  # nothing is committed by it
                consumer.close()

    def _read(self, kafka: Any, consumer: Any, reading: _Reading) -> Iterator[pa.RecordBatch]:
        rows, last = _FIRST_ROWS, time.monotonic()
        while reading.ends:
            got = consumer.consume(min(rows, max(reading.expected(), 1)), _PAUSE)
            wrong = [each for each in got if each.error() is not None]
            ended = [each for each in wrong if each.error().code() == kafka.KafkaError._PARTITION_EOF]  # noqa: SLF001  (its public name)
            self._refuse(kafka, [each for each in wrong if each not in ended])
            kept, finished = reading.kept(to_columns([each for each in got if each.error() is None] if wrong else got))
            finished += reading.ended(ended)
            if finished:
                consumer.incremental_unassign([kafka.TopicPartition(self.name, number) for number in finished])
            if kept.num_rows:
                batch = to_messages(kept, self.name)
                rows = max(_LEAST_ROWS, min(_MOST_ROWS, _BYTES * batch.num_rows // max(batch.nbytes, 1)))
                yield batch
                last = time.monotonic()
            elif finished:
                last = time.monotonic()
            elif time.monotonic() - last > self.patience:
                raise self._stands(reading)

    def _refuse(self, kafka: Any, wrong: Sequence[Any]) -> None:
        """Raise SourceError for what does not pass by itself; remember the rest, in case nothing comes any more."""
        codes = kafka.KafkaError
        final = {
            codes.UNKNOWN_TOPIC_OR_PART,
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.OFFSET_OUT_OF_RANGE,
            codes._UNKNOWN_TOPIC,  # noqa: SLF001  (its public name)
            codes._UNKNOWN_PARTITION,  # noqa: SLF001
            codes._AUTO_OFFSET_RESET,  # noqa: SLF001
            codes._AUTHENTICATION,  # noqa: SLF001
            codes._BAD_COMPRESSION,  # noqa: SLF001
            codes._BAD_MSG,  # noqa: SLF001
        }
        for each in wrong:
            if each.error().code() in final or each.error().fatal():
                raise self.error(each.error())
            self._reported.append(each.error().str())

    def _stands(self, reading: _Reading) -> SourceError:
        where = ", ".join(f"{number}:{reading.reached[number]} of {end}" for number, end in list(reading.ends.items())[:5])
        return SourceError(
            f"Topic {self.name!r} on {self.servers}: no record came for {self.patience:g} s, at offsets {where}{self._last()}. Check that the "
            "leaders of these partitions are there. Nothing was sent; the next run begins where this one did."
        )

    # Clients ----------------------------------------------------------------------------------------------------------

    @property
    def servers(self) -> str:
        """Where the brokers are, as text."""
        return str(self.settings.get("bootstrap.servers", ""))

    def reader_settings(self) -> dict[str, Any]:
        """Return the settings of a consumer that reads the assigned offsets, and leaves nothing behind."""
        return {
            "fetch.queue.backoff.ms": 20,  # the default, a second, is longer than what is on hand lasts
            **self.settings,
            "group.id": self.settings.get("group.id", "airflow-poison"),  # a consumer has to have one; nothing is committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if self.committed else "read_uncommitted",
        }

    def other_settings(self) -> dict[str, Any]:
        """Return the settings without consumers' settings."""
        fetch = _READERS | _READERS_FETCH
        return {name: value for name, value in self.settings.items() if name not in fetch and not name.startswith(_READERS_PREFIXES)}

    def producer_settings(self, largest: int | None) -> dict[str, Any]:
        """Return the settings of a producer whose batches the topic does not refuse for their size, and which finds larger records itself.

        :param largest: the topic's ``max.message.bytes``; None: not known. It is of batches as they are sent, so with compression only brokers know
            which record is too large.
        """
        settings = self.other_settings()
        if largest is None:
            return settings
        plain = all(str(settings.get(name, "none")) == "none" for name in ("compression.type", "compression.codec"))
        most = int(settings.get("message.max.bytes", max(largest, _LARGEST)))
        sizes = {"batch.size": min(int(settings.get("batch.size", _LARGEST)), largest)}
        return {**settings, **sizes, "message.max.bytes": max(_SMALLEST, min(most, largest) if plain else most)}

    def _admin(self, ask: Callable[[Any, float], Any]) -> Any:
        kafka = clients()
        admin = self._made(kafka.admin.AdminClient, self.other_settings())
        try:
            return ask(admin, self.patience)
        except PoisonError:
            raise
        except Exception as error:
            with suppress(Exception):
                admin.poll(0)  # calls error_cb with what went wrong below
            raise self.failed(error) from error

    def _made(self, kind: Any, settings: Mapping[str, Any]) -> Any:
        try:
            given = {"log_level": _CRITICAL, **settings, "error_cb": lambda error: self._reported.append(error.str())}
            return kind(given, logger=_log)
        except Exception as error:
            raise SourceError(
                f"The settings of Kafka for topic {self.name!r} are not usable: {error_text_of(error)} Correct connection=. Nothing was sent."
            ) from error

    def failed(self, error: Exception) -> SourceError:
        """Return what the client has raised as an error that says what to do."""
        kafka = clients()
        if isinstance(error, kafka.KafkaException) and isinstance(error.args[0], kafka.KafkaError):
            return self.error(error.args[0])
        return SourceError(f"Topic {self.name!r} on {self.servers} cannot be read: {error_text_of(error)}. Nothing was sent; run the task again.")

    def error(self, error: Any) -> SourceError:
        """Return what Kafka says as an error that says what to do."""
        codes, cause = clients().KafkaError, error.str()
        what = f"Topic {self.name!r} on {self.servers}"
        refused = any("uthentication failed" in each for each in self._reported)  # the error itself says then that no broker answers
        match codes._AUTHENTICATION if refused else error.code():  # noqa: SLF001  (their public names)
            case codes.UNKNOWN_TOPIC_OR_PART | codes._UNKNOWN_TOPIC | codes._UNKNOWN_PARTITION:  # noqa: SLF001
                text = f"There is no topic {self.name!r} on {self.servers} ({cause}). Check its name and the cluster; topics are not made by reading."
            case codes.TOPIC_AUTHORIZATION_FAILED | codes.GROUP_AUTHORIZATION_FAILED | codes.CLUSTER_AUTHORIZATION_FAILED:
                text = f"{what}: this user has no right to read it ({cause}). Grant it Describe and Read on the topic."
            case codes._AUTHENTICATION | codes.SASL_AUTHENTICATION_FAILED:  # noqa: SLF001
                text = f"{what}: the brokers refuse this user ({cause}{self._last()}). Check user, password and mechanism."
            case codes.OFFSET_OUT_OF_RANGE | codes._AUTO_OFFSET_RESET:  # noqa: SLF001
                text = f"{what}: records expired while they were read ({cause}). Run the task again: it says which offsets are missing."
            case codes._TRANSPORT | codes._ALL_BROKERS_DOWN | codes._TIMED_OUT | codes._RESOLVE | codes.REQUEST_TIMED_OUT:  # noqa: SLF001
                text = f"{what}: no broker answers ({cause}{self._last()}). Check bootstrap.servers, the network and security.protocol."
            case _:
                text = f"{what} cannot be read: {cause}{self._last()}."
        return SourceError(f"{text} Nothing was sent.")

    def _last(self) -> str:
        return f"; it said: {self._reported[-1]}" if self._reported else ""


@dataclass(slots=True)
class _Reading:
    """How far ranges are read.

    :param ranges: those asked for.
    :param left: how many records of each partition are still wanted; None: all.
    :ivar ends: of partitions that are not read yet: the offset behind the last wanted.
    """

    ranges: Ranges
    left: dict[int, int] | None
    reached: dict[int, int]
    ends: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.ends = {number: end for number, (_, end) in self.ranges.items()}

    def expected(self) -> int:
        """Return how many records can still come, at most."""
        if self.left is not None:
            return sum(min(self.left[number], end - self.reached[number]) for number, end in self.ends.items())
        return sum(end - self.reached[number] for number, end in self.ends.items())

    def kept(self, got: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        """Return those records that are wanted, and the partitions that are read now."""
        numbers, offsets = got.column("partition").to_numpy(), got.column("offset").to_numpy()
        keep, finished = np.zeros(got.num_rows, bool), []
        for number in (int(each) for each in np.unique(numbers)):
            end = self.ends.get(number)
            if end is None:  # it was read already; these were on their way
                continue
            here = np.flatnonzero(numbers == number)
            wanted = here[offsets[here] < end]
            if self.left is not None:
                wanted = wanted[: self.left[number]]
                self.left[number] -= len(wanted)
            keep[wanted] = True
            last = int(offsets[here[-1]])
            if self.left is not None and self.left[number] == 0 and len(wanted):
                self.reached[number] = int(offsets[wanted[-1]]) + 1
                finished.append(number)
            elif last >= end - 1:
                self.reached[number] = end
                finished.append(number)
            else:
                self.reached[number] = last + 1
        for number in finished:
            del self.ends[number]
        return (got if keep.all() else got.filter(pa.array(keep))), finished

    def ended(self, events: Sequence[Any]) -> list[int]:
        """Return the partitions whose end was reached: behind the wanted offsets, nothing or only what is no record came."""
        finished = []
        for event in events:
            number = event.partition()
            if number in self.ends and event.offset() >= self.ends[number]:
                self.reached[number] = self.ends.pop(number)
                finished.append(number)
        return finished
