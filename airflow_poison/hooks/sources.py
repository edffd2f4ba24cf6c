"""Verbs of a hook on sources: take what is new, show how far each was taken, begin anew; and send messages back to Kafka."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from airflow_poison.hooks.connection import acting_here
from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_poison.hooks.desk import SelectionLike
    from airflow_poison.passes.take import SourcePosition, TakeResult
    from airflow_poison.passes.to_kafka import SendToKafkaResult
    from airflow_poison.sources.kafka import Kafka
    from airflow_poison.sources.source import Connection, Source, Take
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.mapping import ColumnMapping


class SourceVerbs:
    """Verbs on what fills a queue."""

    if TYPE_CHECKING:  # the hook has them

        def queue(self, queue_name: str) -> QueueTable: ...  # noqa: D102

        def queue_to_read(self, queue_name: str) -> QueueTable: ...  # noqa: D102

        def spark(self, py_files: Sequence[str] = ()) -> SparkSession: ...  # noqa: D102

    def take(
        self,
        queue_name: str,
        source: Source,
        *,
        key: str,
        mapping: ColumnMapping | None = None,
        limit: int | None = None,
        between: tuple[str, str] | None = None,
        on_spark: bool = False,
    ) -> TakeResult:
        """Send what is new in a source, with its new position, in one commit. Raises SourceError, InputError; then nothing was sent.

        :param key: a second take with the same key takes nothing.
        :param limit: take at most so many messages, as far as the source can stop there.
        :param between: a backfill: what lies between two places of the source, whatever was taken before.
        :param on_spark: Spark's executors read the records (of ``Kafka``), not this process.
        """
        from airflow_poison.passes.take import take

        connected = source.connected(found_connection)
        table = self.queue(queue_name)
        read = self.reads_on_spark(table, key) if on_spark else None
        return take(table, connected, key=key, clock=SystemClock(), mapping=mapping, limit=limit, between=between, read=read)

    def reads_on_spark(self, table: QueueTable, key: str, py_files: Sequence[str] = ()) -> Callable[[Take], Iterator[pa.RecordBatch]]:
        """Return what reads the records of a take in Spark's executors; a session is started when there are some.

        :param key: of the take.
        """
        from airflow_poison.spark.send_stage import SendStage

        return partial(SendStage.of_queue(table.folder, key).records, spark=lambda: self.spark(py_files))

    def positions(self, queue_name: str) -> tuple[SourcePosition, ...]:
        """Return how far each source was taken into a queue."""
        from airflow_poison.passes.take import positions

        return positions(self.queue_to_read(queue_name))

    def reset_position(self, queue_name: str, source: str, *, reason: str = "") -> bool:
        """Forget how far a source was taken: the next take begins where the source begins. False when it was not known.

        :param source: its name, as ``positions`` returns it.
        """
        from airflow_poison.passes.take import reset_position

        with acting_here(reason):
            return reset_position(self.queue(queue_name), source, SystemClock())

    def send_to_kafka(
        self,
        queue_name: str,
        lookup_ids: Collection[int],
        kafka: Kafka,
        *,
        selection: SelectionLike = None,
        key: str = "record",
        run: str | None = None,
        reason: str = "",
    ) -> SendToKafkaResult:
        """Move messages to a Kafka topic, and what earlier calls have left on its way there.

        :param lookup_ids: of which messages, all in one commit; none: the messages of ``selection``.
        :param kafka: the topic, with settings or the id of a connection.
        :param selection: messages that meet it now, 10,000 in each commit, but those that a pass has claimed; ``{}``: all poison. None: none.
        :param key: what the records' keys are: ``record`` (the key of the record that a message came from; the lookup id where it came from
            elsewhere), ``lookup_id``, or ``group_id`` (the lookup id where a message has no group).
        :param run: of lookup ids, a key: what a call with the same key has sent before, and is not there now, is no error.
        A record that the topic refuses comes into ``poison`` with the reason (``returned``); the others are sent.
        Raises SourceError, InputError, MessageNotFoundError, MessageClaimedError; then nothing of the commit was moved. Raises OutputError when the
        topic takes no messages: they wait in the queue's outbox for the next call, or for ``take_back_from_kafka``.
        """
        from airflow_poison.desk.exporting import send_selected
        from airflow_poison.desk.given import selection_of
        from airflow_poison.passes.to_kafka import send_to_kafka
        from airflow_poison.values.errors import InputError

        if selection is not None and lookup_ids:
            raise InputError("lookup_ids and selection: expected one of them. Nothing was moved.")
        connected, clock = kafka.connected(found_connection), SystemClock()
        table = self.queue(queue_name)
        with acting_here(reason):
            if selection is None:
                return send_to_kafka(table, lookup_ids, connected, clock, key=key, run=run)
            return send_selected(table, selection_of(selection), connected, clock, key=key)

    def take_back_from_kafka(self, queue_name: str, kafka: Kafka, *, reason: str = "") -> SendToKafkaResult:
        """Put messages that wait in the outbox for a topic into ``poison``; those that are in the topic already only leave the outbox.

        Raises SourceError, OutputError; then what was not taken back waits in the outbox.
        """
        from airflow_poison.passes.to_kafka import take_back_from_kafka

        with acting_here(reason):
            return take_back_from_kafka(self.queue(queue_name), kafka.connected(found_connection), SystemClock())


def found_connection(conn_id: str) -> Connection:
    """Return a connection of Airflow's. Its secrets are masked in logs from then on. Raises SourceError when there is none."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException
    from airflow.sdk.log import mask_secret

    from airflow_poison.sources.source import Connection
    from airflow_poison.values.errors import SourceError

    try:
        found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise SourceError(f"There is no connection {conn_id!r}, which a source names. Add it to Airflow's connections. Nothing was sent.") from error
    extra = found.extra_dejson
    mask_secret([value for value in (found.password, extra) if value])
    return Connection(
        conn_id=conn_id,
        kind=found.conn_type or "",
        host=found.host or "",
        port=found.port,
        login=found.login or "",
        password=found.password or "",
        path=found.schema or "",
        extra=extra,
    )
