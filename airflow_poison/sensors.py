"""Sensors: they wait until messages are there, poison or due, or until a queue is halted or enabled. A look takes milliseconds, without a JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowSkipException

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.base import lookup_ids_of as numbers
from airflow_poison.rules.settings import choice
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SettingError, recalled
from airflow_poison.watching.conditions import Condition, Enabled, EndpointCondition, FilesGone, Halted, MessagesAvailable, PoisonPresent, RetryDue

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_poison.watching.poller import QueueReader


Match = StrEnum("Match", ["ANY", "ALL"])
"""Of which of several queues the condition must hold."""


class QueueSensor(BaseSensorOperator):
    """Wait until a condition holds of a queue, of any of several, or of all of them.

    Deferrable as Airflow's own sensors are: by ``[operators] default_deferrable``, or ``deferrable=True``. Deferred, it is looked after by the
    triggerer, which makes one look at a store for all sensors together. Otherwise a poke reads the table's log, without a JVM; one that finds
    the queue unchanged reads nothing.

    Returns the facts, with ``queue``, as a dict; for ``queue_names`` a list of the facts of all queues for which the condition holds.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. Either this or ``queue_names``. (templated)
    :param queue_names: several queues. (templated)
    :param match: ``any``: one of the queues is enough; ``all``: it must hold of each at the same time.
    :param deferrable: wait in the triggerer; default: Airflow's ``[operators] default_deferrable``.
    :param conn_id: connection of type ``poison``. (templated)
    """

    condition: Condition
    template_fields: Sequence[str] = ("queue_name", "queue_names", "conn_id")
    ui_color = "#efe3f7"

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        queue_names: Sequence[str] | None = None,
        match: str = "any",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        conn_id: str = QueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (queue_name is None) == (queue_names is None):
            raise SettingError("queue_names", queue_names, "either queue_name or queue_names, and not both")
        self.queue_name = queue_name
        self.queue_names = queue_names
        self.match = choice("match", match, Match)
        self.deferrable = deferrable
        self.conn_id = conn_id
        self._look: QueueReader | None = None

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once. Raises QueueNotFoundError, StoreUnreachableError, TableChangedError."""
        del context
        from airflow_poison.watching.poller import QueueReader, Readings, Until

        if self._look is None:
            self._look = QueueReader(QueueHook(self.conn_id).store())
        names = self._names()
        look = Readings(self._look.at(names), SystemClock().now())
        for name in names:
            self.log.info("Queue %r: %s", name, look.ask(name, self.condition).facts)
        met = Until(names, self.condition, self.match is Match.ALL)(look).result
        return PokeReturnValue(is_done=met is not None, xcom_value=None if met is None else self._result(met))

    def execute(self, context: Context) -> Any:
        """Wait; by deferring, when that is wanted and the condition does not hold already.

        Raises AirflowSensorTimeout, and the errors of ``poke``.
        """
        if not self.deferrable:
            return super().execute(context)
        first = self.poke(context)
        if not first.is_done:
            from airflow_poison.triggers import QueueTrigger

            every, names = self.match is Match.ALL, self._names()
            trigger = QueueTrigger(names, self.condition.to_dict(), every=every, conn_id=self.conn_id, poll_interval=self.poke_interval)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return first.xcom_value

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return what the triggerer has found. Raises the error with which a queue could not be looked at."""
        del context
        if "error" in event:
            error = recalled(event["error"], event["message"])
            if self.never_fail:
                raise AirflowSkipException("Skipping due to never_fail is set to True.") from error
            raise error
        return self._result(event["met"])

    def _names(self) -> tuple[str, ...]:
        if self.queue_name is not None:
            return (self.queue_name,)
        if isinstance(self.queue_names, str) or not self.queue_names:
            raise SettingError("queue_names", self.queue_names, "a list of queue names, at least one")
        return tuple(dict.fromkeys(self.queue_names))

    def _result(self, met: Sequence[Mapping[str, object]]) -> Any:
        found = [dict(facts) for facts in met]
        return found[0] if self.queue_name is not None else found


class EndpointSensor(QueueSensor):
    """Wait until a condition holds of an endpoint of a queue.

    :param sub_queue: the endpoint: ``main`` (the queue's own) or ``poison`` (the reader of its poison sub-queue), which halts
        alone; or ``any`` of the two.
    """

    waits_for: ClassVar[type[EndpointCondition]]

    def __init__(self, *, sub_queue: str = "main", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.condition = self.waits_for(sub_queue)


class QueueDisabledSensor(EndpointSensor):
    """Wait until a queue does not receive any more: it is disabled, stopped or faulted.

    Returns ``{"queue", "sub_queue", "state", "reason"}`` of the endpoint that is halted; a list of them for ``queue_names``.
    """

    waits_for = Halted


class QueueEnabledSensor(EndpointSensor):
    """Wait until a queue receives (again): it is neither disabled nor stopped nor faulted.

    Returns ``{"queue", "sub_queue", "state", "reason"}`` of the endpoint that receives; a list of them for ``queue_names``.
    """

    waits_for = Enabled


class QueueMessagesSensor(QueueSensor):
    """Wait until messages are in a sub-queue.

    Without ``age``, messages that a pass could take now: those that one holds do not count, nor does ``main`` while a message blocks the queue, nor
    does what an endpoint reads that is disabled, stopped or faulted. With ``age``, the backlog: all that waits. Returns ``{"queue", "sub_queue",
    "messages", "oldest_enqueued_at"}``; a list of them for ``queue_names``. In ``main`` a timer or a lifetime of a conversation that has ended
    counts, too, as ``timers_due`` (spec SB-56).

    :param sub_queue: ``main``, ``retry``, ``poison``, ``postponed`` (given back by a handler) or ``transmission`` (sent to a disabled queue).
    :param count: how many at least.
    :param age: how long ago the oldest of them was sent at least.
    """

    def __init__(self, *, sub_queue: str = "main", count: int = 1, age: timedelta | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.condition = MessagesAvailable(sub_queue, count, age)


class QueuePoisonSensor(QueueSensor):
    """Wait until messages are in the poison sub-queue.

    Systems that move poison to another queue (backout, exception destination) have it there: wait for that queue with ``QueueMessagesSensor``.
    Returns ``{"queue", "sub_queue", "messages", "oldest_enqueued_at"}``; a list of them for ``queue_names``.

    :param count: how many at least.
    :param age: how long ago the oldest of them was sent at least. Since when it is poison is not known without reading it.
    """

    def __init__(self, *, count: int = 1, age: timedelta | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.condition = PoisonPresent(count, age)


class QueueRetryDueSensor(QueueSensor):
    """Wait until a return would move something to an enabled queue: a retry cycle is over, or what a handler had postponed has its time.

    Returns ``{"queue", "due", "postponed", "waiting", "next_due_at"}``; a list of them for ``queue_names``. Deferred, it goes on at the instant
    at which the retry falls due.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.condition = RetryDue()


class QueuePoisonGoneSensor(QueueSensor):
    """Wait until the messages that made this run have all left the poison sub-queue: put back, moved, removed, or received from there.

    For a DAG with ``schedule=[queue_asset(queue_name, on=("poisoned",))]``, whose runs begin when messages become poison: such a run lasts as long as
    they are, so a ``DeadlineAlert`` of the DAG is missed when one of them has lain there too long. Let many runs be active at once. In a run that
    was made by hand it waits until the poison sub-queue is empty. The time-out counts anew whenever one of the messages has gone.

    Returns ``{"queue", "messages"}``: for how many it has waited; None: for all that were there.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. (templated)
    :param lookup_ids: these messages instead, numbers or text of them. (templated)
    """

    condition: FilesGone
    """That a file in which the messages are is there no more; then they are looked for again."""
    template_fields: Sequence[str] = ("queue_name", "lookup_ids", "conn_id")

    def __init__(self, *, queue_name: str, lookup_ids: Sequence[int] | int | str | None = None, **kwargs: Any) -> None:
        super().__init__(queue_name=queue_name, **kwargs)
        self.lookup_ids = lookup_ids
        self._wanted: frozenset[int] | None = None
        self.condition = FilesGone()

    def execute(self, context: Context) -> Any:
        """Wait. Raises AirflowSensorTimeout, QueueNotFoundError, StoreUnreachableError, TableChangedError, SettingError."""
        self._wanted = self._chosen(context)
        return super().execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Look again, and go on waiting while some of the messages are left."""
        if "error" in event:
            return super().execute_complete(context, event)
        return self.execute(context)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once; reads no message while the files are there in which those were that are waited for."""
        del context
        from airflow_poison.watching.queue_events import poison_files

        queue = QueueHook(self.conn_id).queue(str(self.queue_name))
        snapshot = queue.reading.snapshot()
        if self.condition.paths and not self.condition.met(snapshot, queue.clock.now()).met:
            return PokeReturnValue(is_done=False)
        left = poison_files(queue.reading, snapshot, self._wanted)
        self.condition = FilesGone(paths=tuple(file.path for file in left))
        self.log.info("Queue %r: what is waited for is in %s files of poison.", self.queue_name, len(left))
        messages = None if self._wanted is None else len(self._wanted)
        return PokeReturnValue(is_done=not left, xcom_value={"queue": self.queue_name, "messages": messages})

    def _chosen(self, context: Context) -> frozenset[int] | None:
        """Return the messages to wait for; None: all."""
        from airflow_poison.watching.queue_events import poisoned

        if self.lookup_ids is not None:
            return frozenset(numbers(self.lookup_ids))
        events = [event for events in context["triggering_asset_events"].values() for event in events]
        if not events:
            return None
        payloads = [payload for event in events if (payload := (event.extra or {}).get("payload"))]
        return poisoned(QueueHook(self.conn_id).queue(str(self.queue_name)).reading, payloads)
