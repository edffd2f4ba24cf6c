"""``Kafka``: the records of a topic, each taken once. The queue keeps the offsets; nothing is committed to a consumer group.

Keys become groups, headers become properties; ``kafka.topic``, ``kafka.partition``, ``kafka.offset`` and ``kafka.timestamp`` say where a message
comes from. A tombstone (a record without a value) is a message with an empty body and the property ``kafka.tombstone``.

Ranges of a Kafka topic as a DataFrame that Spark's executors read, through Spark's own ``kafka`` format.

The settings of librdkafka become settings of Kafka's Java client. The rows are what the task makes of records that it reads itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison.sources.kafka_topic import Topic, to_messages
from airflow_poison.sources.source import NO_BODY, NotOnSparkError, Reached, Source, Take
from airflow_poison.values.clock import EPOCH
from airflow_poison.values.errors import InputError, SettingError, SourceError
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.sources.kafka_topic import Ranges
    from airflow_poison.sources.schemas import Schema
    from airflow_poison.sources.source import Connection, JsonValue, Position, Then


EARLIEST, LATEST = "earliest", "latest"
ISOLATIONS = ("read_committed", "read_uncommitted")
_SHOWN = 8
_OFFSETS = re.compile(r"\d+:\d+(,\d+:\d+)*")
_FROM_CODE_ALONE = ("plugin.library.paths", "ssl.engine.location", "sasl.kerberos.kinit.cmd")
"""Settings that load or run programs: an editor of a connection must not be able to run programs here."""


@dataclass(frozen=True)
class Kafka(Source):
    """The records of a Kafka topic, partition by partition in their order.

    :param topic: its name.
    :param connection: the id of an Airflow connection of type ``kafka``, whose extra has the settings of librdkafka; or these settings.
    :param start: where the first take begins: ``earliest``, ``latest`` (with what comes after that first take) or a time (ISO 8601, UTC where it
        names no zone). Partitions that are added later begin at their beginning.
    :param isolation: ``read_committed``: what transactions have written comes when they commit, and never when they abort. ``read_uncommitted``.
    :param expired: what is done when records that were not taken are gone, by retention: ``error``, or ``skip`` them and say so.
    :param name: what the position is kept under. None: ``kafka:`` and the topic. Give one for topics of one name on two clusters.
    :param schema: what each value is checked against or decoded with.
    :param patience: how long the brokers may not answer, or no record may come, before it is an error.
    """

    topic: str
    connection: str | Mapping[str, Any] = field(default="kafka_default", repr=False)
    start: str = EARLIEST
    isolation: str = "read_committed"
    expired: str = "error"
    name: str = ""
    schema: Schema | None = None
    patience: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not self.topic.strip():
            raise SettingError("topic", self.topic, "the name of a topic")
        for setting, allowed in (("isolation", ISOLATIONS), ("expired", ("error", "skip"))):
            if getattr(self, setting) not in allowed:
                raise SettingError(setting, getattr(self, setting), ", ".join(allowed))
        if self.start not in {EARLIEST, LATEST} and _milliseconds(self.start) is None:
            raise SettingError("start", self.start, f"{EARLIEST}, {LATEST}, or a time of ISO 8601, as 2026-11-25T06:00:00Z")
        if not self.connection:
            raise SettingError("connection", self.connection, "the id of a connection, or settings of librdkafka: {'bootstrap.servers': 'host:9092'}")
        if not isinstance(self.patience, timedelta) or self.patience <= timedelta(0):
            raise SettingError("patience", self.patience, "a duration above 0")
        object.__setattr__(self, "name", self.name or f"kafka:{self.topic}")

    def connected(self, find: Callable[[str], Connection]) -> Kafka:
        """Return the source with its settings. Raises SourceError for a connection without them."""
        schema = None if self.schema is None else self.schema.connected(find)
        settings = settings_of(find(self.connection)) if isinstance(self.connection, str) else self.connection
        return replace(self, connection=settings, schema=schema)

    @property
    def kafka(self) -> Topic:
        """The topic, for a client. Raises SourceError for a connection that was not looked up."""
        if isinstance(self.connection, str):
            raise SourceError(
                f"Source {self.name!r} names connection {self.connection!r}, which only Airflow can look up. Give the settings themselves here: "
                "connection={'bootstrap.servers': 'host:9092'}. Nothing was sent."
            )
        return Topic(self.connection, self.topic, self.isolation == ISOLATIONS[0], self.patience.total_seconds())

    @property
    def asset_uri(self) -> str:
        """The first of its brokers, and the topic."""
        return f"kafka://{self.kafka.servers.split(',')[0].rpartition('://')[2].strip()}/{self.topic}"

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        """Return the records behind the position, up to those that are there now. Raises SourceError.

        A position of another topic of this name, behind the topic's end, or in front of records that have expired, is an error.
        """
        topic = self.kafka
        topic_id, partitions = topic.identity()
        lows, ends = topic.offsets(partitions, EARLIEST), topic.offsets(partitions, LATEST)
        starts = self._after(position.at, topic_id, partitions) if position.at else self._placed(topic, self.start, lows, ends)
        starts, skipped = self._there(starts, lows)
        self._refuse_beyond(topic, starts, ends)
        ranges = {number: (first, ends[number]) for number, first in starts.items() if first < ends[number]}
        if not ranges and not skipped and (position.at or self.start != LATEST):
            return None
        return self._take(topic, topic_id, starts, ranges, limit=limit, skipped=skipped)

    def between(self, start: str, end: str) -> Take:
        """Return the records between two places, whatever was taken before.

        :param start: offsets by partition (``0:120,1:40``), a time (ISO 8601), or ``earliest``. Of a time: the
            first record of each partition from then on.
        :param end: excluded; the same kind of place, or ``latest``. An offset behind the last record stands for the end.
        """
        topic = self.kafka
        topic_id, partitions = topic.identity()
        lows, ends = topic.offsets(partitions, EARLIEST), topic.offsets(partitions, LATEST)
        first, last = (self._placed(topic, place, lows, ends) for place in (start, end))
        if _OFFSETS.fullmatch(start) and end == LATEST:
            last = {number: last[number] for number in first}
        elif _OFFSETS.fullmatch(end) and start == EARLIEST:
            first = {number: first[number] for number in last}
        if first.keys() != last.keys():
            raise InputError(f"{start!r} to {end!r}: both name the same partitions of topic {self.topic!r}. Nothing was sent.")
        wrong = [number for number in first if first[number] > last[number]]
        if wrong:
            shown = f"partition {wrong[0]}: {first[wrong[0]]} to {last[wrong[0]]}"
            raise InputError(f"{start!r} to {end!r}: the end is in front of the beginning ({shown}). Nothing was sent.")
        first, skipped = self._there(first, lows)
        ranges = {number: (first[number], min(last[number], ends[number])) for number in first if first[number] < min(last[number], ends[number])}
        return self._take(topic, topic_id, first, ranges, limit=None, skipped=skipped)

    def describe(self, at: Mapping[str, JsonValue]) -> str:
        """Return the offsets."""
        return f"offsets {_listed({int(number): str(offset) for number, offset in _offsets(at).items()})}" if at else "the beginning"

    # Where to begin ---------------------------------------------------------------------------------------------------

    def _after(self, at: Mapping[str, JsonValue], topic_id: str, partitions: list[int]) -> dict[int, int]:
        """Return where a position is in each partition; those that it does not know are new, and begin at 0. Raises SourceError."""
        known = {int(number): offset for number, offset in _offsets(at).items()}
        before, gone = str(at.get("topic_id", "")), sorted(known.keys() - set(partitions))
        if (before and topic_id and before != topic_id) or gone:
            why = f"its id was {before} and is {topic_id}" if not gone else f"partitions {gone} are gone"
            raise SourceError(
                f"Topic {self.topic!r} was made anew since it was taken last: {why}, so the position of source {self.name!r} ({self.describe(at)}) "
                "says nothing of it. To take the new topic from its beginning (start=), reset the position: airflow poison reset-position QUEUE "
                f"{self.name}. Nothing was sent."
            )
        return {number: known.get(number, 0) for number in partitions}

    def _placed(self, topic: Topic, place: str, lows: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """Return a place as offsets. Raises InputError."""
        if place in {EARLIEST, LATEST}:
            return dict(lows if place == EARLIEST else ends)
        if _OFFSETS.fullmatch(place):
            found = {int(number): int(offset) for number, offset in (part.split(":") for part in place.split(","))}
            unknown = sorted(found.keys() - lows.keys())
            if unknown:
                raise InputError(f"{place!r}: topic {self.topic!r} has no partition {unknown[0]}; it has {_listed(dict.fromkeys(lows, ''))}.")
            return found
        at = _milliseconds(place)
        if at is None:
            raise InputError(
                f"{place!r} is no place in topic {self.topic!r}; expected offsets by partition (0:120,1:40), a time of ISO 8601, {EARLIEST} "
                f"or {LATEST}. Nothing was sent."
            )
        return {number: ends[number] if offset < 0 else offset for number, offset in topic.offsets(lows.keys(), at).items()}

    def _there(self, starts: Mapping[int, int], lows: Mapping[int, int]) -> tuple[dict[int, int], str]:
        """Return where what is left begins, and what is left out, in words. Raises SourceError where records are gone that were not taken."""
        gone = {number: (first, lows[number]) for number, first in starts.items() if first < lows[number]}
        if not gone:
            return dict(starts), ""
        offsets = _listed({number: f"{first}-{low}" for number, (first, low) in gone.items()})
        if self.expired == "error":
            raise SourceError(
                f"Topic {self.topic!r} has lost records before source {self.name!r} took them: offsets {offsets}, the end excluded, have expired "
                "(retention.ms, retention.bytes) or were deleted. To go on with what is left, take it once with expired='skip', which says what it "
                f"leaves out; keep records longer than the time between two takes. Nothing was sent."
            )
        return {number: max(first, lows[number]) for number, first in starts.items()}, f"expired and skipped: offsets {offsets}"

    def _refuse_beyond(self, topic: Topic, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Raise SourceError for a position behind the last record: the topic has lost some that were taken."""
        if all(first <= ends[number] for number, first in starts.items()):
            return
        ends = topic.offsets(starts.keys(), LATEST, committed=False)
        beyond = {number: f"{first} of {ends[number]}" for number, first in starts.items() if first > ends[number]}
        if beyond:
            raise SourceError(
                f"The position of source {self.name!r} is behind the end of topic {self.topic!r}: offsets {_listed(beyond)}. The topic has lost "
                "records that were taken (an unclean leader election), or was made anew. Take what is there by its offsets as a backfill, or reset "
                f"the position: airflow poison reset-position QUEUE {self.name}. Nothing was sent."
            )

    # What is read -----------------------------------------------------------------------------------------------------

    def _take(self, topic: Topic, topic_id: str, starts: Mapping[int, int], ranges: Ranges, *, limit: int | None, skipped: str) -> Take:
        shares = None if limit is None else shared({number: end - first for number, (first, end) in ranges.items()}, limit)
        wanted = ranges if shares is None else {number: each for number, each in ranges.items() if shares[number]}
        reached: dict[int, int] = {}

        def batches() -> Iterator[pa.RecordBatch]:
            yield from topic.records(wanted, reached, shares)

        def frame(spark: SparkSession, then: Then | None = None) -> DataFrame:
            capped = {number: (first, end if shares is None else min(end, first + shares[number])) for number, (first, end) in wanted.items()}
            reached.update({number: end for number, (_, end) in capped.items()})
            return records_frame(spark, topic, capped, then)

        def now_at() -> Reached:
            if topic.identity()[0] != topic_id:
                raise SourceError(f"Topic {self.topic!r} was made anew while it was read. Nothing was sent; run the task again.")
            return Reached({"topic_id": topic_id, "offsets": {str(number): reached.get(number, first) for number, first in sorted(starts.items())}})

        offsets = _listed({number: f"{first}-{end}" for number, (first, end) in wanted.items()})
        number = sum(end - first for first, end in ranges.values())
        most = number if limit is None else min(limit, number)
        what = f"{f'{most:,} at most of ' if most < number else ''}offsets {offsets}" if wanted else "no records"
        return Take(what="; ".join(filter(None, (what, skipped))), batches=batches, reached=now_at, messages=most, frame=frame, rows=frame)


def settings_of(found: Connection) -> dict[str, Any]:
    """Return the settings of librdkafka that a connection has. Raises SourceError."""
    settings = {name: value for name, value in found.extra.items() if value is not None and not name.endswith("_cb")}
    refused = [name for name in _FROM_CODE_ALONE if name in settings]
    if refused:
        raise SourceError(
            f"Connection {found.conn_id!r} has the setting {refused[0]!r}, which runs programs; it is allowed only in code: connection={{...}}. "
            "Nothing was sent."
        )
    if found.host and "bootstrap.servers" not in settings:
        settings["bootstrap.servers"] = found.host if found.port is None else f"{found.host}:{found.port}"
    if "bootstrap.servers" not in settings:
        raise SourceError(
            f"Connection {found.conn_id!r} has no bootstrap.servers. Put the settings of librdkafka into its extra, as Airflow's Kafka provider does:"
            ' {"bootstrap.servers": "host:9092"}. Nothing was sent.'
        )
    return settings


def shared(there: Mapping[int, int], limit: int) -> dict[int, int]:
    """Return how many of each partition are taken where not all can be: equally many, as far as there are so many.

    What cannot be shared is the fullest one's.
    """
    shares, left = dict.fromkeys(there, 0), limit
    for rank, number in enumerate(sorted(there, key=lambda number: (there[number], number))):
        shares[number] = min(there[number], left // (len(there) - rank))
        left -= shares[number]
    return shares


def _offsets(at: Mapping[str, JsonValue]) -> dict[str, int]:
    found: Any = at.get("offsets", {})
    return dict(found)


def _listed(texts: Mapping[int, str]) -> str:
    """Return something of each partition, the first ones of many."""
    shown = ", ".join(f"{number}:{text}" if text else str(number) for number, text in sorted(texts.items())[:_SHOWN])
    return shown if len(texts) <= _SHOWN else f"{shown} and of {counted(len(texts) - _SHOWN, 'partition more', 'partitions more')}"


def _milliseconds(place: object) -> int | None:
    """Return a time as milliseconds since 1970; None for what is none."""
    try:
        found = datetime.fromisoformat(str(place))
    except ValueError:
        return None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return max(0, -((EPOCH - found) // timedelta(milliseconds=1)))


_COLUMNS = f"message_id string, group_id string, body binary, properties map<string, string>, `{NO_BODY}` boolean"
_MISSING = "Failed to find data source: kafka"
_JAVA = {name: name for name in ("bootstrap.servers", "client.id", "client.rack", "security.protocol", "ssl.endpoint.identification.algorithm")} | {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
}
"""How Kafka's Java client names settings of librdkafka that mean the same there."""
_VALUES: Mapping[str, Callable[[str], str]] = {
    "security.protocol": str.upper,
    "ssl.endpoint.identification.algorithm": lambda value: "" if value == "none" else value,
}
_OF_NO_RECORD = ("debug", "log", "socket.", "statistics.", "reconnect.", "topic.metadata.", "broker.address.")
"""Begin settings of librdkafka on which nothing depends that is read."""


def records_frame(spark: SparkSession, topic: Topic, ranges: Ranges, then: Then | None = None) -> DataFrame:
    """Return the records of ranges of offsets as messages, each partition's in their order; or what is made of them.

    Raises NotOnSparkError for a setting that Kafka's Java client does not have, and where Spark has no classes of its ``kafka`` format.
    """
    name = topic.name
    settings, unknown = java_settings(topic.other_settings())
    if unknown:
        raise NotOnSparkError(
            f"Kafka's setting {unknown} is one of librdkafka alone, and Spark's executors read topic {name!r} with Kafka's Java client. Leave the "
            "setting out, or take the topic without on_spark: then the task reads it. Nothing was sent."
        )
    from pyspark import __version__ as version
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    options = {f"kafka.{setting}": value for setting, value in settings.items()} | {
        "assign": json.dumps({name: sorted(ranges)}),
        "startingOffsets": json.dumps({name: {str(number): first for number, (first, _) in ranges.items()}}),
        "endingOffsets": json.dumps({name: {str(number): end for number, (_, end) in ranges.items()}}),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(round(topic.patience * 1_000)),
        "kafka.isolation.level": "read_committed" if topic.committed else "read_uncommitted",
    }
    try:
        records = spark.read.format("kafka").options(**options).load()
        records.columns  # noqa: B018  (Spark Connect looks only now)
    except AnalysisException as error:
        if _MISSING not in str(error):
            raise
        raise NotOnSparkError(
            f"Spark has no classes of its kafka format, by which executors read topic {name!r}. Add "
            f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{version} to the settings of the Spark connection, or take the topic "
            "without on_spark: then the task reads it. Nothing was sent."
        ) from error

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = (to_messages(batch, name) for batch in batches)
        yield from made if then is None else then.make(made)

    columns = ("key", "value", "partition", "offset", f.unix_millis("timestamp").alias("timestamp"), "headers")
    return records.select(*columns).mapInArrow(read, schema=_COLUMNS if then is None else then.columns)


def java_settings(settings: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return settings of librdkafka as settings of Kafka's Java client, and the name of one that it does not have; empty where there is none."""
    left = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    made = _logins(left)
    for name, value in left.items():
        if name in _JAVA:
            made[_JAVA[name]] = _VALUES.get(name, str)(value)
        elif not name.startswith(_OF_NO_RECORD):
            return {}, name
    if made.keys() & {"ssl.truststore.location", "ssl.truststore.certificates"}:
        made["ssl.truststore.type"] = "PEM"
    return made, ""


def _logins(left: dict[str, str]) -> dict[str, str]:
    """Take user and password out of settings, where they are for a mechanism that both clients have."""
    mechanism = (left.get("sasl.mechanism") or left.get("sasl.mechanisms") or "").upper()
    if mechanism != "PLAIN" and not mechanism.startswith("SCRAM-"):
        return {}
    user, password, *_ = (left.pop(f"sasl.{name}", "") for name in ("username", "password", "mechanism", "mechanisms"))
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    module = f"org.apache.kafka.common.security.{kind}LoginModule"
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{module} required username={_quoted(user)} password={_quoted(password)};",
    }


def _quoted(value: str) -> str:
    """Return a text as JAAS reads it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
