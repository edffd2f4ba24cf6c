"""QueuePoisonGoneSensor: wait until messages are poison no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_poison.core.watching.conditions import FilesGone
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.lookup_ids import lookup_ids as numbers
from airflow_poison.sensors.base import QueueSensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context


class QueuePoisonGoneSensor(QueueSensor):
    """Wait until the messages that made this run have all left the poison sub-queue: put back, moved, removed, or received from there.

    For a DAG with ``schedule=[queue_asset(queue_name, on=("poisoned",))]``, whose runs begin when messages become poison: such a run lasts as long as
    they are, so a ``DeadlineAlert`` of the DAG is missed when one of them has lain there too long. Let many runs be active at once. In a run that
    somebody has made by hand it waits until the poison sub-queue is empty. The time-out counts anew whenever one of the messages has gone.

    Returns ``{"queue", "messages"}``: for how many it has waited; None: for all that were there.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. (templated)
    :param lookup_ids: these messages instead, numbers or text of them. (templated)
    :param deferrable: wait in the triggerer; default: Airflow's ``[operators] default_deferrable``.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "lookup_ids", "conn_id")

    def __init__(self, *, queue_name: str, lookup_ids: Sequence[int] | int | str | None = None, **kwargs: Any) -> None:
        super().__init__(queue_name=queue_name, **kwargs)
        self.lookup_ids = lookup_ids
        self._wanted: frozenset[int] | None = None
        self._condition = FilesGone()

    @property
    def condition(self) -> FilesGone:
        """What is waited for: that a file in which the messages are is there no more; then they are looked for again."""
        return self._condition

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
        from airflow_poison.core.clock import SystemClock
        from airflow_poison.core.watching.news import poison_files

        table = QueueHook(self.conn_id).queue(str(self.queue_name))
        snapshot = table.snapshot()
        if self._condition.paths and not self._condition.met(snapshot, SystemClock().now()).met:
            return PokeReturnValue(is_done=False)
        left = poison_files(table, snapshot, self._wanted)
        self._condition = FilesGone(paths=tuple(file.path for file in left))
        self.log.info("Queue %r: what is waited for is in %s files of poison.", self.queue_name, len(left))
        messages = None if self._wanted is None else len(self._wanted)
        return PokeReturnValue(is_done=not left, xcom_value={"queue": self.queue_name, "messages": messages})

    def _chosen(self, context: Context) -> frozenset[int] | None:
        """Return the messages to wait for; None: all."""
        from airflow_poison.core.watching.news import poisoned

        if self.lookup_ids is not None:
            return frozenset(numbers(self.lookup_ids))
        events = [event for events in context["triggering_asset_events"].values() for event in events]
        if not events:
            return None
        payloads = [payload for event in events if (payload := (event.extra or {}).get("payload"))]
        return poisoned(QueueHook(self.conn_id).queue(str(self.queue_name)), payloads)
