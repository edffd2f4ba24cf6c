"""QueueSendToKafkaOperator: move messages of a queue to a Kafka topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.hooks.sources import found_connection
from airflow_poison.lineage import Lineage, WithLineage, queue_uri
from airflow_poison.links.queue import EventsLink, PoisonLink, QueueLink
from airflow_poison.operators.base import QueueOperator, lookup_ids_of
from airflow_poison.operators.desk import as_given
from airflow_poison.operators.identity import task_key
from airflow_poison.sources.kafka import Kafka
from airflow_poison.values.errors import InputError, SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_poison.desk.selection import Selection


class QueueSendToKafkaOperator(WithLineage, QueueOperator):
    """Move messages to a Kafka topic, each once for consumers with ``isolation.level=read_committed``. Starts no JVM.

    With ``lookup_ids`` all of them in one commit; with ``selection`` those that meet it when the task runs, 10,000 in each commit, but those that a
    pass has claimed. Messages that earlier calls have left on their way to the topic are sent first; without ``lookup_ids`` and ``selection`` only
    these are. A task that is killed anywhere, retried or cleared sends no message twice: with ``lookup_ids`` those that an earlier try has sent are
    no error, with ``selection`` those are sent that meet it then.

    A record that the topic refuses (too large, without a key in a compacted topic) comes into the queue's ``poison`` with the reason. The others are
    sent, and the task succeeds.

    Returns ``{"queue", "topic", "sent", "finished", "left", "returned"}``.

    :param kafka: the topic: ``Kafka("letters", "kafka_default")``.
    :param selection: conditions by name, as ``Selection`` has them, a ``Selection``, or JSON text; ``{}``: all poison. (templated)
    :param lookup_ids: which messages, numbers or text of them. (templated)
    :param key: what the records' keys are: ``record`` (the key of the record that a message came from; the lookup id where it came from elsewhere),
        ``lookup_id``, or ``group_id`` (the lookup id where a message has no group). (templated)
    :param reason: why, for the events. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "selection", "lookup_ids", "key", "reason", "conn_id")
    ui_color = "#e8f4e5"
    operator_extra_links = (QueueLink(), PoisonLink(), EventsLink())

    def __init__(
        self,
        *,
        kafka: Kafka,
        selection: Selection | Mapping[str, Any] | str | None = None,
        lookup_ids: Sequence[int] | int | str | None = None,
        key: str = "record",
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(kafka, Kafka):
            raise SettingError("kafka", kafka, "a topic: Kafka('letters', 'kafka_default')")
        if selection is not None and lookup_ids is not None:
            raise InputError(f"{self.task_id}: give one of selection and lookup_ids, or neither to send what earlier calls have left.")
        self.kafka = kafka
        self.selection = as_given(selection)
        self.lookup_ids = lookup_ids
        self.key = key
        self.reason = reason
        self.lineage = Lineage()

    def execute(self, context: Context) -> dict[str, object]:
        """Send them. Raises SettingError, QueryError, SourceError, InputError, MessageNotFoundError, MessageClaimedError, OutputError."""
        if isinstance(self.selection, str) and not self.selection.strip():
            raise SettingError("selection", self.selection, "conditions by name, for example {'error_type': 'KeyError'}, and {} for all poison")
        hook, kafka = QueueHook(self.conn_id), self.kafka.connected(found_connection)
        result = hook.send_to_kafka(
            self.queue_name,
            [] if self.lookup_ids is None else lookup_ids_of(self.lookup_ids),
            kafka,
            selection=self.selection,
            key=self.key,
            run=task_key(context, hook, self.queue_name, "kafka", self.kafka.topic),
            reason=self.reason,
        )
        self.lineage.reads(self, queue_uri(self.conn_id, self.queue_name))
        if result.sent or result.finished:
            self.lineage.writes(self, kafka.asset_uri)
        self.log.info("Sent %s messages of %r to topic %r.", f"{result.sent:,}", self.queue_name, result.topic)
        if result.finished:
            self.log.info("An earlier call had put %s messages there; they are removed from the outbox now.", f"{result.finished:,}")
        if result.returned:
            self.log.warning("The topic refuses %s messages. They are in poison of %r, with the reason.", f"{result.returned:,}", self.queue_name)
        if result.left:
            self.log.warning("%s messages stay: passes have claimed them, or they were changed meanwhile.", f"{result.left:,}")
        return result.to_dict()
