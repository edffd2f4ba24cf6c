"""Send to Kafka: messages leave the queue for a topic, each exactly once for consumers with ``isolation.level=read_committed``.

One commit puts them into the queue's outbox, where no pass receives them. Each outbox file is then one transaction of Kafka, which also commits the
file's name, to a consumer group of the queue's own; then the file is removed. Who comes after a death shuts earlier producers out, and asks the group
which file was the last: that one is only removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.core.errors import InputError, OutputError, SettingError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.passes.browse import MessageRow, masked, recorded_mask
from airflow_poison.core.passes.messages import ByHand, Chosen
from airflow_poison.core.passes.relay import FROM, ORIGIN_QUEUE, REASON, addressed, sent_events, to_topic
from airflow_poison.core.schema import DESTINATION, TO_TOPIC
from airflow_poison.core.sources.kafka_records import TOMBSTONE
from airflow_poison.core.sources.kafka_topic import clients
from airflow_poison.core.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.masking import Masking
    from airflow_poison.core.schema import SubQueue
    from airflow_poison.core.sources.kafka import Kafka
    from airflow_poison.core.sources.kafka_topic import Topic
    from airflow_poison.core.store.files import DataFile
    from airflow_poison.core.store.queue_table import QueueTable

LOOKUP_ID, QUEUE_ID, MESSAGE_ID = "poison.lookup_id", "poison.queue_id", "poison.message_id"
"""The headers that say, with the queue's name and the reason, which message a record was."""
KEYS = ("lookup_id", "group_id")
_LARGEST = 1_000_000
"""librdkafka's ``message.max.bytes``, where no other one is set."""
_OVERHEAD = 512


@dataclass(frozen=True, slots=True)
class SendToKafkaResult(Plain):
    """What was sent to a topic.

    :param sent: messages that this call has put into the topic, those that earlier ones have left in the outbox among them.
    :param finished: messages that an earlier call had put there, and not removed.
    :param left: messages of a selection that stay in the queue, since a pass has claimed them, or somebody has changed them meanwhile.
    """

    queue: str
    topic: str
    sent: int
    finished: int
    left: int = 0


def send_to_kafka(
    table: QueueTable,
    lookup_ids: Collection[int],
    kafka: Kafka,
    clock: Clock,
    *,
    key: str = "lookup_id",
    run: str | None = None,
    places: Collection[SubQueue] = FROM,
) -> SendToKafkaResult:
    """Move messages to a topic, and what earlier calls have left on its way there.

    :param kafka: the topic, connected; its settings are those of producers, too.
    :param key: what the records' keys are: ``lookup_id``, or ``group_id`` (the lookup id where a message has no group).
    :param run: a key: what a call with the same key has sent before, and is not there now, is no error.
    :param places: the sub-queues where they may be.
    Raises SourceError for no broker, topic or rights, InputError for a message that is too large, MessageNotFoundError, MessageClaimedError; then
    nothing was moved. Raises OutputError when the topic does not take them: they wait in the queue's outbox for the next call.
    """
    if key not in KEYS:
        raise SettingError("key", key, ", ".join(KEYS))
    topic = kafka.kafka
    topic.identity()  # a topic that is not there must not strand messages in the outbox
    most, now, target = int(topic.settings.get("message.max.bytes", _LARGEST)), clock.now(), TO_TOPIC + topic.name

    def become(rows: pa.Table) -> pa.Table:
        _check_sizes(rows, most, table.name)
        return addressed(rows, [target] * rows.num_rows)

    if lookup_ids:
        ByHand(Chosen.ids(lookup_ids), become, lambda rows: sent_events(rows, [target] * rows.num_rows, now), places, run).commit(table, now)
        reach("pass.send_to_kafka.before_sending")
    return publish(table, kafka, clock, key=key)


def publish(table: QueueTable, kafka: Kafka, clock: Clock, *, key: str = "lookup_id") -> SendToKafkaResult:
    """Send what waits in the outbox for a topic, each file in a transaction, and remove it there. Safe to call again, and twice at the same time.

    Raises SourceError, OutputError; then what was not sent waits in the outbox.
    """
    topic = kafka.kafka
    if not _waiting(table, topic):
        return SendToKafkaResult(table.name, topic.name, 0, 0)
    sent = finished = 0
    client = clients()
    try:
        with _Sender(topic, f"airflow-poison:{table.identity()}:{topic.name}") as sender:
            last = sender.last()
            for file, rows in _waiting(table, topic):  # looked at after earlier producers were shut out
                if file.path == last:
                    finished += rows.num_rows
                else:
                    reach("pass.to_kafka.before_transaction")
                    sender.send(file.path, _records(rows, table, key))
                    sent += rows.num_rows
                reach("pass.to_kafka.before_removal")
                table.remove_outbox([file], clock.now())
    except client.KafkaException as error:
        raise OutputError(_refusal(topic, error.args[0].str())) from error
    return SendToKafkaResult(table.name, topic.name, sent, finished)


def _waiting(table: QueueTable, topic: Topic) -> list[tuple[DataFile, pa.Table]]:
    found = ((file, table.read(file)) for file in table.snapshot().outbox)
    return [(file, rows) for file, rows in found if to_topic(rows) == topic.name]


class _Sender:
    """A producer whose transactions belong to one queue and topic: a new one shuts earlier ones out, and ends what they have begun."""

    def __init__(self, topic: Topic, identity: str) -> None:
        self._topic, self._identity, self._failed = topic, identity, list[str]()
        client = clients()
        patience = topic.patience
        self._producer = client.Producer(
            {
                "linger.ms": 20,
                **topic.other_settings(),
                "transactional.id": identity,
                "enable.idempotence": True,
                "acks": "all",
                "transaction.timeout.ms": max(60_000, int(patience * 1_000)),
                "log_level": 2,
            }
        )
        self._consumer = client.Consumer({**topic.reader_settings(), "group.id": identity, "isolation.level": "read_committed", "log_level": 2})

    def __enter__(self) -> Self:
        self._producer.init_transactions(self._topic.patience)
        return self

    def __exit__(self, *_error: object) -> None:
        self._consumer.close()

    def last(self) -> str:
        """Return what the last transaction that was committed has said of itself."""
        [found] = self._consumer.committed([self._place(0)], timeout=self._topic.patience)
        if found.error is not None:
            raise clients().KafkaException(found.error)
        return str(found.metadata or "")

    def send(self, name: str, records: Iterator[dict[str, Any]]) -> None:
        """Send records in a transaction that says its name. Raises KafkaException, OutputError; then none of them is there."""
        self._failed.clear()
        self._producer.begin_transaction()
        try:
            for record in records:
                self._produce(record)
            self._producer.flush(self._topic.patience)
            self._refuse_failed()
            reach("pass.to_kafka.before_commit")
            self._producer.send_offsets_to_transaction([self._place(0, name)], self._consumer.consumer_group_metadata(), self._topic.patience)
            self._producer.commit_transaction(self._topic.patience)
            reach("pass.to_kafka.after_commit")
        except Exception:
            self._abort()
            raise

    def _refuse_failed(self) -> None:
        if self._failed:
            raise OutputError(_refusal(self._topic, self._failed[0]))

    def _produce(self, record: dict[str, Any]) -> None:
        delivered = partial(self._delivered, dict(record["headers"])[LOOKUP_ID].decode())
        while True:
            try:
                self._producer.produce(self._topic.name, **record, on_delivery=delivered)
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def _delivered(self, lookup_id: str, error: Any, _record: object) -> None:
        if error is not None:
            self._failed.append(f"message {lookup_id}: {error.str()}")

    def _abort(self) -> None:
        """End the transaction, where that can be done; else the next producer, or Kafka after a while, ends it."""
        try:
            self._producer.abort_transaction(self._topic.patience)
        except clients().KafkaException as error:
            self._failed.append(error.args[0].str())

    def _place(self, offset: int, said: str | None = None) -> Any:
        where = clients().TopicPartition
        return where(self._topic.name, 0, offset) if said is None else where(self._topic.name, 0, offset, said)


def _records(rows: pa.Table, table: QueueTable, key: str) -> Iterator[dict[str, Any]]:
    """Yield messages as records of Kafka."""
    masking, identity = recorded_mask(table), table.identity()
    reasons = _reasons(rows, masking)
    cells = zip(*(rows[name].to_pylist() for name in ("lookup_id", "message_id", "group_id", "body", "properties")), reasons, strict=True)
    for lookup_id, message_id, group_id, body, properties, reason in cells:
        headers = {name: value for name, value in properties or () if name != DESTINATION}
        gone = headers.pop(TOMBSTONE, None) is not None
        headers |= {ORIGIN_QUEUE: table.name, QUEUE_ID: identity, LOOKUP_ID: str(lookup_id), MESSAGE_ID: message_id or "", REASON: reason or ""}
        yield {
            "key": (group_id if key == "group_id" and group_id is not None else str(lookup_id)).encode(),
            "value": None if gone and not body else body or b"",
            "headers": [(name, (value or "").encode()) for name, value in headers.items()],
        }


def _reasons(rows: pa.Table, masking: Masking | None) -> list[str | None]:
    if masking is None:
        return list(rows["reason"].to_pylist())
    return [masked(row, masking).reason for row in MessageRow.of(rows)]


def _check_sizes(rows: pa.Table, most: int, queue: str) -> None:
    """Raise InputError for a message that the producer refuses."""
    for lookup_id, body, properties in zip(*(rows[name].to_pylist() for name in ("lookup_id", "body", "properties")), strict=True):
        size = len(body or b"") + sum(len(name) + len((value or "").encode()) for name, value in properties or ()) + _OVERHEAD
        if size > most:
            raise InputError(
                f"Message {lookup_id} of queue {queue!r} is a record of about {size:,} bytes; message.max.bytes allows {most:,}. Raise it in the "
                "connection and max.message.bytes of the topic, or leave the message out. Nothing was moved."
            )


def _refusal(topic: Topic, said: str) -> str:
    return (
        f"Topic {topic.name!r} on {topic.servers} does not take the messages: {said}. They wait in the queue's "
        "outbox, and the next call sends those that are not in the topic. Needed are Read and Write on the topic, Write on the transactional id "
        "and Read on the group, both 'airflow-poison:…'; and that no other sender of this queue begins meanwhile."
    )
