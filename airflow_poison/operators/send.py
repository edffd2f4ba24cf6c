"""QueueSendOperator: put the rows of any Spark DataFrame, or plain Python values, into a queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_poison import stats
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.lineage import Lineage, WithLineage, path_uri, queue_uri, sources_of
from airflow_poison.links import MessagesLink, QueueLink
from airflow_poison.operators.base import QueueOperator, cancel_jobs, leave_server, number, task_key
from airflow_poison.passes.runs import run_key
from airflow_poison.rules import checked_policy
from airflow_poison.sources.source import Source, Take
from airflow_poison.values.errors import InputError, SettingError, StoreUnreachableError
from airflow_poison.values.masking import checked_mask

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.sdk import Context
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.queue import Queue
    from airflow_poison.rules.policy import Policy
    from airflow_poison.sources.paths import PathFiles
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.mapping import ColumnMapping


class QueueSendOperator(WithLineage, QueueOperator):
    """Send messages, in one commit: all or none.

    What is sent comes from exactly one of ``path``, ``table``, ``dataframe``, ``messages`` and ``source``. Running the task again (retry, clear)
    sends nothing twice, unless ``resend`` says so; with ``send_key`` other runs send nothing twice either.
    A disabled queue is no error: the messages wait until it is enabled (spec SB-19).
    Returns ``{"queue", "sent", "first_lookup_id", "repeated", "held", "malformed"}``; of a source also ``"source"``, ``"what"``, ``"position"``,
    ``"passed_over"``.

    :param path: a file, a folder or a pattern. (templated) Files of lines (``json``, ``text``), ``csv`` and ``parquet`` that this task reaches are
        read without Spark, others by Spark. Records that are not what they should be go to the poison sub-queue.
    :param format: the format of ``path``, as Spark names it.
    :param options: options for reading ``path``, as Spark names them, text by name. (templated)
    :param table: a table of Spark's catalog. (templated)
    :param dataframe: a function that is called with the Spark session and returns a DataFrame.
    :param messages: a plain list, sent without Spark: dicts (mapped like rows), bytes or text (bodies). (templated)
    :param source: what grows somewhere else: ``Files``, ``Kafka``, ``DeltaChanges``, ``Jdbc`` or a class of yours. Each run takes what is new since
        the last one, and the position is kept with the queue. Records that are not what they should be go to the poison sub-queue.
    :param max_messages: of a source: take at most so many, as far as the source can stop there. (templated)
    :param backfill: of a source: take what lies between two places, whatever was taken before; the position stays. (templated)
    :param on_spark: of ``Kafka``: Spark's executors read the records, through Spark's own ``kafka`` format, whose classes they need. False: this task
        reads them.
    :param body: the column that is the body (text or bytes); a list of columns: one JSON object of them; None: one JSON object of all. (templated)
    :param group: the column of the group whose order matters. (templated)
    :param priority: the column of the priority, whole numbers from 0 to 10. (templated)
    :param properties: columns that become properties, as text. (templated)
    :param message_id: the column of the sender's own identifier. (templated)
    :param message_type: the column of the message type. (templated)
    :param conversation: the column of the conversation. (templated)
    :param expires_after: time to live: a duration, or a column of seconds. (templated)
    :param policy: makes the queue when it is missing and records this policy in it; without it the queue must exist.
    :param mask: paths of values that are hidden wherever messages are shown (``$.card``, ``properties.token``); None: as recorded, []: none.
    :param py_files: files (``.py``, ``.zip``, ``.egg``, ``.whl``) shipped to Spark's executors, for Python functions of the DataFrame. (templated)
    :param send_key: names what is sent: a later send to the queue with the same key, of any run, sends nothing. None: the task instance. (templated)
    :param resend: every try of the task sends anew.
    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``: where Spark runs; None: as ``conn_id`` says. (templated)
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "path",
        "options",
        "table",
        "messages",
        "max_messages",
        "backfill",
        "body",
        "group",
        "priority",
        "properties",
        "message_id",
        "message_type",
        "conversation",
        "expires_after",
        "py_files",
        "send_key",
        "conn_id",
        "spark_conn_id",
    )
    ui_color = "#e8f4e5"
    operator_extra_links = (QueueLink(), MessagesLink())

    def __init__(
        self,
        *,
        path: str | None = None,
        format: str = "parquet",  # noqa: A002  (Spark's own word)
        options: Mapping[str, str] | None = None,
        table: str | None = None,
        dataframe: Callable[[SparkSession], DataFrame] | None = None,
        messages: Sequence[object] | None = None,
        source: Source | None = None,
        max_messages: int | str | None = None,
        backfill: Sequence[str] | None = None,
        on_spark: bool = False,
        body: str | Sequence[str] | None = None,
        group: str | None = None,
        priority: str | None = None,
        properties: Sequence[str] = (),
        message_id: str | None = None,
        message_type: str | None = None,
        conversation: str | None = None,
        expires_after: timedelta | str | None = None,
        policy: Policy | None = None,
        mask: Sequence[str] | str | None = None,
        py_files: Sequence[str] = (),
        send_key: str | None = None,
        resend: bool = False,
        spark_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sources = {"path": path, "table": table, "dataframe": dataframe, "messages": messages, "source": source}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise InputError(f"{self.task_id}: give exactly one of path, table, dataframe, messages and source; given: {', '.join(given) or 'none'}.")
        if source is not None and not isinstance(source, Source):
            raise SettingError("source", source, f"Files, Kafka, DeltaChanges, Jdbc or a source of yours, not {type(source).__name__}")
        self.path = path
        self._fixed_path = path if isinstance(path, str) and "{" not in path else None
        self.format = format
        self.options = options
        self.table = table
        self.dataframe = dataframe
        self.messages = messages
        self.source = source
        self.max_messages = max_messages
        self.backfill = backfill
        self.on_spark = on_spark
        self.body = body
        self.group = group
        self.priority = priority
        self.properties = properties
        self.message_id = message_id
        self.message_type = message_type
        self.conversation = conversation
        self.expires_after = expires_after
        self.policy = checked_policy(policy)
        self.mask = checked_mask(mask)
        self.py_files = py_files
        self.send_key = send_key
        self.resend = resend
        self.spark_conn_id = spark_conn_id
        self.lineage = Lineage()

    def execute(self, context: Context) -> dict[str, object]:
        """Send what is not sent yet. Raises InputError, MessageTooLargeError, QueueNotFoundError; then nothing was sent."""
        from airflow_poison.passes.send import send

        self._check_rendered()
        self._mapping()  # before a queue is made
        hook = QueueHook(self.conn_id, self.spark_conn_id)
        queue = hook.queue(self.queue_name, self.policy, mask=self.mask)
        table, key = queue.table, self._key(context, hook, queue.table)
        try:
            if (source := self._source(hook, table, key)) is not None:
                return self._take_from(source, hook, queue, key)
            result = send(table, self._batches(hook, table, key, queue.clock.now()), key=key, clock=queue.clock)
        finally:
            leave_server()
        if result.repeated:
            is_shared = self.send_key is not None and getattr(context.get("ti"), "map_index", -1) >= 0  # by instances of a mapped task
            self.log.log(
                logging.WARNING if is_shared else logging.INFO,
                "An earlier send with this key has sent these %s messages to %r; nothing was sent now.%s",
                f"{result.sent:,}",
                self.queue_name,
                " If that was another instance of this mapped task, give each a send_key of its own." if is_shared else "",
            )
        else:
            self._sent(table, result.sent)
            self.log.info("Sent %s messages to %r, lookup ids from %s.", f"{result.sent:,}", self.queue_name, result.first_lookup_id)
            self._warn_of_malformed(result.malformed)
            self._warn_of_the_same_files(context, hook)
        if result.held:
            self.log.warning("The queue was disabled: the messages wait until it is enabled.")
        return result.to_dict()

    def _check_rendered(self) -> None:
        """Raise InputError for a template that has left nothing to send, or text in place of a list, and SettingError for options that are text."""
        if isinstance(self.messages, str):
            raise InputError(
                f"messages={self.messages!r:.100} is str; expected a list of messages. A template makes text of a list, unless the task has "
                "render_template_as_native_obj=True; give task.output in its place, or for one message write [...] around it. Nothing was sent."
            )
        if all(each is None for each in (self.path, self.table, self.dataframe, self.messages, self.source)):
            raise InputError(
                f"{self.task_id}: nothing says what to send: the template of path, table or messages has the value None. Give it one, or [] as "
                "messages for none. Nothing was sent."
            )
        if not isinstance(self.options, Mapping | None):
            raise SettingError("options", self.options, "text by name, as {'header': 'true'}")

    def _source(self, hook: QueueHook, queue: QueueTable, key: str) -> Source | None:
        """Return the source, where what is sent comes from one."""
        del hook, queue, key
        return self.source

    def _refuse_a_sources(self) -> None:
        for name in ("max_messages", "backfill", "on_spark"):
            if (given := getattr(self, name)) is not None and given is not False:
                raise SettingError(name, given, "with a source: only a source has what it has taken before, or lets executors read")

    def _reads_on_spark(self, hook: QueueHook, queue: QueueTable, key: str) -> Callable[[Take], Iterator[pa.RecordBatch]]:
        """Return what reads the records of a take in Spark's executors; a session is started when there are some."""
        from airflow_poison.spark.send_stage import SendStage

        return partial(SendStage.of_queue(queue.folder, key).records, spark=lambda: hook.spark(self.py_files))

    def _take_from(self, source: Source, hook: QueueHook, queue: Queue, key: str) -> dict[str, object]:
        connected = source.connected(queue.store.connections)
        result = queue.take(
            connected,
            key=key,
            mapping=self._mapping(),
            limit=number("max_messages", self.max_messages),
            between=_between(self.backfill),
            read=self._reads_on_spark(hook, queue.table, key) if self.on_spark else None,
        )
        if result.repeated:
            self.log.info("An earlier run with this key has taken %s messages from %s; nothing was taken now.", f"{result.sent:,}", result.source)
        elif not result.what:
            self.log.info("Nothing is new in %s: %s.", result.source, result.position)
        else:
            self.lineage.reads(self, connected.asset_uri)
            self._sent(queue.table, result.sent)
            self.log.info("Took %s from %s: %s messages to %r. Now: %s.", result.what, result.source, f"{result.sent:,}", queue.name, result.position)
        if not result.repeated:
            self._warn_of_malformed(result.malformed)
        for sentence in result.passed_over:
            self.log.warning("Passed over in %s: %s.", result.source, sentence)
        if result.held:
            self.log.warning("The queue was disabled: the messages wait until it is enabled.")
        return result.to_dict()

    def _warn_of_malformed(self, messages: int) -> None:
        if messages:
            self.log.warning(
                "%s of them are not what they should be: they are in the poison sub-queue of %r, with their errors.", f"{messages:,}", self.queue_name
            )

    def _warn_of_the_same_files(self, context: Context, hook: QueueHook) -> None:
        """Warn of files that an earlier run of the DAG has sent: the path is the same in each run, and none has changed since that run began."""
        is_fixed = self._fixed_path is not None and self.path == self._fixed_path and context["ti"].map_index in {-1, None}
        if not is_fixed or self.send_key is not None or self.resend or not (earlier := context.get("prev_start_date_success")):
            return
        with suppress(FileNotFoundError, StoreUnreachableError):
            files = self._files(hook)
            changed = None if files is None else files.changed_at()
            if changed is not None and changed < earlier:
                self.log.warning(
                    "path=%r is the same in every run, and nothing there has changed since %s; the run that began at %s has sent the same messages. "
                    "For a file once over all runs set send_key (such as send_key=path), or take what is new: source=Files(path).",
                    self.path,
                    changed.isoformat(timespec="seconds"),
                    earlier.isoformat(timespec="seconds"),
                )

    def _sent(self, queue: QueueTable, messages: int) -> None:
        uri = queue_uri(self.conn_id, self.queue_name)
        self.lineage.tables[uri] = queue.uri
        self.lineage.writes(self, uri)
        stats.moved("sent", messages, queue, self.conn_id)

    def _key(self, context: Context, hook: QueueHook, queue: QueueTable) -> str:
        more = [context["ti"].id] if self.resend else []
        if self.send_key is not None:
            name = str(self.send_key)  # a template may make a number of it
            if name.strip() in {"", "None"}:  # one key for all runs: only the first would send
                raise SettingError(
                    "send_key", name, "a name for what is sent once; Airflow makes 'None' of a template whose value is none, give it one"
                )
            return run_key(queue.uri, name, *more)
        return task_key(context, hook, queue.uri, *more)

    def on_kill(self) -> None:
        """Stop the Spark job; nothing has been sent then."""
        cancel_jobs(self.log)

    def _batches(self, hook: QueueHook, queue: QueueTable, key: str, now: datetime) -> Iterator[pa.RecordBatch]:
        """Yield the messages. When an earlier run has sent them, none is read, and no Spark starts."""
        from airflow_poison.sources.bodies import batches_of

        self._refuse_a_sources()
        if self.messages is not None:
            yield from batches_of(self.messages, self._mapping(), now)
            return
        if (files := self._files(hook)) is not None:
            self.lineage.reads(self, path_uri(files.path))
            yield from files.messages(self._mapping(), now)
            return
        from airflow_poison.spark.send_stage import FrameSource, SendStage

        source = FrameSource(path=self.path, format=self.format, options=self.options or {}, table=self.table, dataframe=self.dataframe)

        def opened() -> DataFrame:
            hook.import_here(self.py_files)
            frame = source.open(hook.spark(self.py_files))
            self.lineage.reads(self, *([path_uri(self.path)] if self.path is not None else sources_of(frame)))
            return frame

        yield from SendStage.of_queue(queue.folder, key).batches(opened, self._mapping(), now)

    def _files(self, hook: QueueHook) -> PathFiles | None:
        """Return the files at the path that this task reads itself; the store's credentials are for its own kind of object store."""
        from airflow_poison.sources.paths import PathFiles

        if self.path is None:
            return None
        alike = self.path.partition("://")[0] == hook.settings.store.partition("://")[0]
        return PathFiles.at(self.path, self.format, self.options or {}, hook.settings.storage_options if alike else {})

    def _mapping(self) -> ColumnMapping:
        from airflow_poison.values.mapping import ColumnMapping

        return ColumnMapping(
            body=tuple(self.body) if isinstance(self.body, list) else self.body,  # type: ignore[arg-type]  # ColumnMapping checks what it is
            group=self.group,
            priority=self.priority,
            properties=tuple(self.properties) if isinstance(self.properties, list) else self.properties,  # type: ignore[arg-type]
            message_id=self.message_id,
            message_type=self.message_type,
            conversation=self.conversation,
            expires_after=self.expires_after,
        )


def _between(given: Sequence[str] | None) -> tuple[str, str] | None:
    """Return two places of a source. Raises SettingError."""
    if given is None:
        return None
    if isinstance(given, str) or len(given) != 2:  # noqa: PLR2004  (from and to)
        raise SettingError("backfill", given, "two places of the source: from, which is included, and to, which is not")
    return str(given[0]), str(given[1])
