"""Send to Kafka: messages leave the queue for a topic, each exactly once for consumers with ``isolation.level=read_committed``.

One commit puts them into the queue's outbox, where no pass receives them. Each outbox file is then one transaction of Kafka, which also commits the
file's name, to a consumer group of the queue's own; then the file is removed. Who comes after a death shuts earlier producers out, and asks the group
which file was the last: that one is only removed.

When the topic refuses records of a file, its transaction is aborted. The next one commits ``held:`` and the file's name: no sender sends it under
that name from then on, since only a producer that is not fenced can commit this, and a later one reads it first. Then one commit of the queue puts
the refused messages into ``poison`` and the others into a new outbox file. A sender that finds a held file gives all of it a new name. So each file
leaves the outbox by one commit, and either all of it is in the topic or nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

from airflow_poison.passes.browse import MessageRow, masked, recorded_mask
from airflow_poison.passes.history import BY_HAND
from airflow_poison.passes.messages import ByHand, Chosen, with_columns
from airflow_poison.passes.move import moved_rows
from airflow_poison.passes.relay import FROM, ORIGIN_QUEUE, REASON, addressed, sent_events, to_topic
from airflow_poison.sources.kafka_topic import (
    TOMBSTONE,
    Topic,
    clients,
    error_text_of,
    is_record,
    own_properties,
    record_group,
    record_headers,
    record_key,
)
from airflow_poison.values.errors import OutputError, PoisonError, SettingError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.failures import Failure, FailureKind, error_cell
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.schema import DESTINATION, LAST_ERROR, TO_TOPIC, SubQueue
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.sources.kafka import Kafka
    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock
    from airflow_poison.values.masking import Masking

P = ParamSpec("P")
R = TypeVar("R")
LOOKUP_ID, QUEUE_ID, MESSAGE_ID = "poison.lookup_id", "poison.queue_id", "poison.message_id"
"""The headers that say, with the queue's name and the reason, which message a record was."""
KEYS = ("record", "lookup_id", "group_id")
HELD = "held:"
"""Begins what a transaction says of an outbox file that is never sent under its name."""
_TRIES = 3


@dataclass(frozen=True, slots=True)
class SendToKafkaResult(Plain):
    """What was sent to a topic.

    :param sent: messages that this call has put into the topic, those that earlier ones have left in the outbox among them.
    :param finished: messages that an earlier call had put there, and not removed.
    :param left: messages of a selection that stay in the queue, since a pass has claimed them, or they were changed meanwhile.
    :param returned: messages that came back into ``poison``: the topic refuses them, as their reason says, or they were taken back.
    """

    queue: str
    topic: str
    sent: int
    finished: int
    left: int = 0
    returned: int = 0


def send_to_kafka(
    table: QueueTable,
    lookup_ids: Collection[int],
    kafka: Kafka,
    clock: Clock,
    *,
    key: str = KEYS[0],
    run: str | None = None,
    places: Collection[SubQueue] = FROM,
) -> SendToKafkaResult:
    """Move messages to a topic, and what earlier calls have left on its way there.

    :param kafka: the topic, connected; its settings are also used for producers.
    :param key: what the records' keys are: ``record`` (the key of the record that a message came from; the lookup id where it came from elsewhere),
        ``lookup_id``, or ``group_id`` (the lookup id where a message has no group).
    :param run: a key: what a call with the same key has sent before, and is not there now, is no error.
    :param places: the sub-queues where they may be.
    A record that the topic refuses (too large, without a key in a compacted topic) comes into ``poison`` with the reason; the others are sent.
    Raises SourceError for no broker, topic or rights, MessageNotFoundError, MessageClaimedError; then nothing was moved. Raises OutputError when the
    topic takes none: they wait in the queue's outbox for the next call, or for ``take_back_from_kafka``.
    """
    if key not in KEYS:
        raise SettingError("key", key, ", ".join(KEYS))
    topic = kafka.kafka
    topic.identity()  # a topic that is not there must not strand messages in the outbox
    now, target = clock.now(), TO_TOPIC + topic.name
    if lookup_ids:
        ByHand(
            Chosen.ids(lookup_ids),
            lambda rows: addressed(rows, [target] * rows.num_rows),
            lambda rows: sent_events(rows, [target] * rows.num_rows, now),
            places,
            run,
        ).commit(table)
        reach("pass.send_to_kafka.before_sending")
    return publish(table, kafka, clock, key=key)


def take_back_from_kafka(table: QueueTable, kafka: Kafka, clock: Clock) -> SendToKafkaResult:
    """Put what waits in the outbox for a topic into ``poison`` instead; what an earlier call has put into the topic is removed.

    Asks the brokers which messages are in the topic already, so the topic must be there. A sender that is under way fails.
    Raises SourceError, OutputError; then what was not taken back waits in the outbox.
    """
    kafka.kafka.identity()
    return publish(table, kafka, clock, back=True)


def publish(table: QueueTable, kafka: Kafka, clock: Clock, *, key: str = KEYS[0], back: bool = False) -> SendToKafkaResult:
    """Send what waits in the outbox for a topic, each file in a transaction, and remove it there. Safe to call again, and twice at the same time.

    Records that the topic refuses come into ``poison`` with the reason, and the others of their file are sent.

    :param back: send nothing, and put all of it into ``poison``.
    Raises SourceError, OutputError; then what was not sent waits in the outbox.
    """
    topic = kafka.kafka
    if _next(table, topic) is None:
        return SendToKafkaResult(table.name, topic.name, 0, 0)
    sent = finished = returned = 0
    with _Sender(topic, f"airflow-poison:{table.identity()}:{topic.name}") as sender:
        while found := _next(table, topic, sender.last):  # read after earlier producers were fenced
            file, rows = found
            if file.path == sender.last:
                reach("pass.to_kafka.before_removal")
                table.remove_outbox([file])
                finished += rows.num_rows
            elif sender.last == HELD + file.path:
                _put_back(table, file, rows, {}, clock.now())  # the same messages under another name: this one is never sent
            elif back:
                sender.hold(file.path)
                _put_back(table, file, rows, dict.fromkeys(rows["lookup_id"].to_pylist()), clock.now())
                returned += rows.num_rows
            elif refused := sender.send(file.path, _records(rows, table, key)):
                sender.hold(file.path)
                _put_back(table, file, rows, refused, clock.now())
                returned += len(refused)
            else:
                reach("pass.to_kafka.before_removal")
                table.remove_outbox([file])
                sent += rows.num_rows
    return SendToKafkaResult(table.name, topic.name, sent, finished, returned=returned)


def _next(table: QueueTable, topic: Topic, last: str = "") -> tuple[DataFile, pa.Table] | None:
    """Return a file that waits for a topic: first the one that the last transaction was about, since the next one takes its place."""
    for file in sorted(table.snapshot().outbox, key=lambda file: file.path != last.removeprefix(HELD)):
        rows = table.read(file)
        if to_topic(rows) == topic.name:
            return file, rows
    return None


def _put_back(table: QueueTable, file: DataFile, rows: pa.Table, refused: Mapping[int | None, str | None], now: datetime) -> None:
    """Replace an outbox file by one with its other messages; the refused ones come into ``poison``, all in one commit.

    :param refused: why, by lookup id; None: people have taken them back.
    """
    gone = pc.is_in(rows["lookup_id"], value_set=pa.array(list(refused), pa.int64()))
    here = rows.filter(gone)
    why = [refused[number] for number in here["lookup_id"].to_pylist()]
    properties = [[pair for pair in cell or () if pair[0] != DESTINATION] for cell in here["properties"].to_pylist()]
    after = with_columns(
        moved_rows(here, SubQueue.POISON),
        properties=properties,
        reason=[old if new is None else f"{OutputError.__name__}: {new}" for old, new in zip(here["reason"].to_pylist(), why, strict=True)],
        last_error=[
            old if new is None else error_cell(Failure(FailureKind.EXCEPTION, OutputError.__name__, new))
            for old, new in zip(here["last_error"].to_pylist(), why, strict=True)
        ],
    )
    reach("pass.to_kafka.before_return")
    table.replace_file(file, pa.concat_tables([rows.filter(pc.invert(gone)), after]), list(_returned_events(after, why, now)))
    reach("pass.to_kafka.after_return")


def _returned_events(rows: pa.Table, why: Sequence[str | None], now: datetime) -> Iterator[Event]:
    columns = (rows[name].to_pylist() for name in ("lookup_id", "move_count", LAST_ERROR))
    for number, moves, error, reason in zip(*columns, why, strict=True):
        details = {"by": BY_HAND} if reason is None else {"error": f"{OutputError.__name__}: {reason}"}
        group = "" if reason is None else error["fingerprint"]
        yield Event(EventType.MOVED_POISON, now, number, 0, moves or 0, {"place": SubQueue.POISON.value, **details}, group)


# The producer ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Try:
    """What became of the records of one transaction that is not committed yet, by lookup id.

    :ivar local: those that the producer has refused itself.
    """

    there: set[int] = field(default_factory=set)
    failed: dict[int, Any] = field(default_factory=dict)
    local: set[int] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        """Whether the brokers have refused a record, so that the transaction can only be aborted."""
        return not self.failed.keys() <= self.local

    def delivered(self, lookup_id: int, error: Any, _record: object = None) -> None:
        if error is None:
            self.there.add(lookup_id)
        else:
            self.failed[lookup_id] = error


def _of_client(act: Callable[P, R]) -> Callable[P, R]:
    """Turn whatever the client raises in a method of the sender into OutputError."""

    @wraps(act)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return act(*args, **kwargs)
        except PoisonError:
            raise
        except Exception as error:
            raise OutputError(_refusal(cast("_Sender", args[0]).topic, error_text_of(error))) from error

    return called


_COORDINATOR_MOVES = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Errors of a broker that starts or is replaced: they end by themselves, and the client does not ask again."""


class _Sender:
    """A producer whose transactions belong to one queue and topic: a new one shuts earlier ones out, and ends what they have begun.

    :ivar last: what the last transaction that was committed has said: the name of an outbox file that is in the topic, or ``held:`` and the name of
        one that never will be.
    """

    @_of_client
    def __init__(self, topic: Topic, identity: str) -> None:
        self.topic, self._identity = topic, identity
        self._largest = topic.largest()
        self._alone = False
        self._consumer = clients().Consumer({**topic.reader_settings(), "group.id": identity, "isolation.level": "read_committed", "log_level": 2})

    @_of_client
    def __enter__(self) -> Self:
        self._begin()
        self.last = self._committed()
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(Exception):  # what it has committed stays
            self._consumer.close()

    def _begin(self) -> None:
        """Make the producer, which shuts earlier ones out."""
        self._producer = clients().Producer(
            {
                "linger.ms": 20,
                **self.topic.producer_settings(self._largest),
                **({"batch.num.messages": 1, "max.in.flight": 1} if self._alone else {}),
                "transactional.id": self._identity,
                "enable.idempotence": True,
                "acks": "all",
                "transaction.timeout.ms": max(60_000, int(self.topic.patience * 1_000)),
                "log_level": 2,
            }
        )
        self._producer.init_transactions(self.topic.patience)

    def _begin_again(self, *, alone: bool) -> None:
        """Make another producer after a transaction that has failed. Raises OutputError when another sender has sent meanwhile."""
        self._alone = alone
        reach("pass.to_kafka.before_another_producer")
        self._begin()
        if self._committed() != self.last:
            raise OutputError(_refusal(self.topic, "another sender of this queue has sent messages meanwhile"))

    def _committed(self) -> str:
        kafka, until = clients(), time.monotonic() + self.topic.patience
        while True:
            try:
                [found] = self._consumer.committed([self._place(0)], timeout=self.topic.patience)
            except kafka.KafkaException as error:
                if error.args[0].name() not in _COORDINATOR_MOVES or time.monotonic() > until:
                    raise
                time.sleep(0.2)
                continue
            if found.error is not None:
                raise kafka.KafkaException(found.error)
            return str(found.metadata or "")

    @_of_client
    def send(self, name: str, records: Sequence[Record]) -> dict[int | None, str | None]:
        """Send records in a transaction that says its name; or return which of them the topic refuses, and why: then none of them is there.

        Raises OutputError; then none of them is there, either.
        """
        reach("pass.to_kafka.before_transaction")
        refused: dict[int | None, str | None] = {}
        untried, idle = list(records), 0
        while untried:
            found = _Try()
            self._producer.begin_transaction()
            try:
                self._produce(untried, found)
                if not found.failed and not refused:
                    self._commit(name)
                    return {}
                culprits = self._culprits(found)
            except BaseException:
                self._abort()
                raise
            self._abort()
            sizes = {record.lookup_id: record.size for record in untried}
            refused |= {number: self._why(error, sizes[number]) for number, error in culprits.items()}
            idle = 0 if culprits or found.there else idle + 1
            if idle > _TRIES:
                raise OutputError(_refusal(self.topic, next(iter(found.failed.values())).str()))
            untried = [record for record in untried if record.lookup_id not in found.there and record.lookup_id not in culprits]
            if found.is_over:
                self._begin_again(alone=self._alone or not (culprits or found.failed.keys() <= culprits.keys()))
        return refused

    @_of_client
    def hold(self, name: str) -> None:
        """Commit that a file is never sent under its name: a later sender gives it another one. Raises OutputError."""
        self._producer.begin_transaction()
        try:
            self._commit(HELD + name)
        except BaseException:
            self._abort()
            raise
        reach("pass.to_kafka.after_hold")

    def _commit(self, mark: str) -> None:
        reach("pass.to_kafka.before_commit")
        self._producer.send_offsets_to_transaction([self._place(0, mark)], self._consumer.consumer_group_metadata(), self.topic.patience)
        self._producer.commit_transaction(self.topic.patience)
        self.last = mark
        reach("pass.to_kafka.after_commit")

    def _produce(self, records: Sequence[Record], found: _Try) -> None:
        """Produce records and wait for the brokers' answers, until they refuse one. Raises KafkaException, OutputError."""
        for record in records:
            if not found.is_over:
                self._enqueue(record, found)
        waiting, until = -1, 0.0
        while len(self._producer) and not found.is_over:
            if len(self._producer) != waiting:
                waiting, until = len(self._producer), time.monotonic() + self.topic.patience
            elif time.monotonic() > until:
                raise OutputError(_refusal(self.topic, f"no broker has answered for {self.topic.patience:g} s"))
            self._producer.poll(0.1)

    def _enqueue(self, record: Record, found: _Try) -> None:
        client, on_delivery = clients(), partial(found.delivered, record.lookup_id)
        while not found.is_over:
            try:
                self._producer.produce(self.topic.name, record.value, record.key, headers=record.whole_headers(), on_delivery=on_delivery)
            except BufferError:
                self._producer.poll(0.1)
            except (ValueError, TypeError, OverflowError) as error:  # its key, value or headers are none: the transaction goes on
                found.local.add(record.lookup_id)
                found.delivered(record.lookup_id, client.KafkaError(client.KafkaError.INVALID_RECORD, f"{type(error).__name__}: {error}"))
                return
            except client.KafkaException as error:
                if error.args[0].code() == client.KafkaError.MSG_SIZE_TOO_LARGE:  # the producer itself has looked; the transaction goes on
                    found.local.add(record.lookup_id)
                    found.delivered(record.lookup_id, error.args[0])
                    return
                self._producer.poll(0.1)
                if not found.is_over:  # else the transaction has failed by a record whose failure is known now
                    raise
            else:
                self._producer.poll(0)
                return

    def _culprits(self, found: _Try) -> dict[int, Any]:
        """Return the records that the topic refuses, by lookup id. Raises OutputError for an error that is not about a record.

        Brokers answer for a batch. Newer ones name the invalid records in it; but one that is too large has all of its batch refused.
        """
        client = clients()
        codes = client.KafkaError
        neighbours = {codes._INVALID_DIFFERENT_RECORD, codes._PURGE_QUEUE, codes._PURGE_INFLIGHT}  # noqa: SLF001  (their public names)
        refusals = {
            codes.MSG_SIZE_TOO_LARGE,
            codes.INVALID_RECORD,
            codes.INVALID_MSG,
            codes.INVALID_MSG_SIZE,
            codes.RECORD_LIST_TOO_LARGE,
            codes.INVALID_TIMESTAMP,
            codes.POLICY_VIOLATION,
        }
        failed = {number: error for number, error in found.failed.items() if error.code() not in neighbours}
        other = next((f"message {number}: {error.str()}" for number, error in failed.items() if error.code() not in refusals), None)
        if other is not None:
            raise OutputError(_refusal(self.topic, other))
        named = any(error.code() == codes._INVALID_DIFFERENT_RECORD for error in found.failed.values())  # noqa: SLF001
        times = Counter(error.code() for number, error in failed.items() if number not in found.local)
        sure = {code for code, number in times.items() if number == 1 or self._alone or (named and code == codes.INVALID_RECORD)}
        return {number: error for number, error in failed.items() if number in found.local or error.code() in sure}

    def _why(self, error: Any, size: int) -> str:
        most = "" if self._largest is None else f"; its max.message.bytes is {self._largest:,}"
        text = error.str().removeprefix("Unable to produce message: ")
        return f"topic {self.topic.name!r} refuses the record of about {size:,} bytes: {text}{most}"

    def _abort(self) -> None:
        """End the transaction, where that can be done; else the next producer, or Kafka after a while, ends it."""
        with suppress(Exception):
            self._producer.abort_transaction(self.topic.patience)

    def _place(self, offset: int, mark: str | None = None) -> Any:
        where = clients().TopicPartition
        return where(self.topic.name, 0, offset) if mark is None else where(self.topic.name, 0, offset, mark)


# Messages as records --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """A message as a record of Kafka."""

    lookup_id: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    def whole_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers. Raises ValueError where the client would cut a name."""
        cut = next((name for name, _ in self.headers if "\0" in name), None)
        if cut is not None:
            raise ValueError(f"the name of the header {cut!r} has a zero character, where Kafka's client would cut it")
        return self.headers

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        return len(self.key or b"") + len(self.value or b"") + sum(len(name.encode()) + len(value or b"") for name, value in self.headers)


def _records(rows: pa.Table, table: QueueTable, key: str) -> list[Record]:
    columns = rows.select(["lookup_id", "message_id", "group_id", "body", "properties"]).to_pylist()
    reasons, identity = _reasons(rows, recorded_mask(table)), table.identity()
    return [record_of({**row, "reason": reason}, table.name, identity, key) for row, reason in zip(columns, reasons, strict=True)]


def record_of(row: Mapping[str, Any], queue: str, queue_id: str, key: str) -> Record:
    """Return a message as a record: what came from Kafka as the record that it was, with our own headers behind its own.

    :param row: a message's columns.
    :param key: one of ``KEYS``.
    """
    lookup_id, group_id, body = row["lookup_id"], row["group_id"], row["body"] or b""
    properties = {name: value for name, value in row["properties"] or () if name != DESTINATION}
    from_kafka, gone = is_record(properties), properties.get(TOMBSTONE) is not None
    if from_kafka:
        headers, own = record_headers(properties), own_properties(properties)
    else:
        headers, own = [], {name: value or "" for name, value in properties.items() if name != TOMBSTONE}
    own |= {ORIGIN_QUEUE: queue, QUEUE_ID: queue_id, LOOKUP_ID: str(lookup_id), MESSAGE_ID: row["message_id"] or "", REASON: row["reason"] or ""}
    headers += [(name, value.encode()) for name, value in own.items()]
    made: bytes | None = str(lookup_id).encode()
    if key == "record" and from_kafka:
        made = record_key(group_id, properties)
    elif key == "group_id" and group_id is not None:
        made = record_group(group_id, properties)
    return Record(lookup_id, made, None if gone and not body else body, headers)


def _reasons(rows: pa.Table, masking: Masking | None) -> list[str | None]:
    if masking is None:
        return list(rows["reason"].to_pylist())
    return [masked(row, masking).reason for row in MessageRow.of(rows)]


def _refusal(topic: Topic, text: str) -> str:
    return (
        f"Topic {topic.name!r} on {topic.servers} does not take the messages: {text}. They wait in the queue's "
        "outbox, and the next call sends those that are not in the topic. Needed are Read and Write on the topic, Write on the transactional id "
        "and Read on the group, both 'airflow-poison:…'; and that no other sender of this queue begins meanwhile. To have them back in poison: "
        f"airflow poison send-to-kafka QUEUE --topic {topic.name} --take-back."
    )
