"""QueueDisabledSensor: wait until a queue is halted."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_poison.core.policies.settings import choice
from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

Endpoints = StrEnum("Endpoints", ["MAIN", "POISON", "ANY"])
"""Which endpoints of a queue are watched."""


class QueueDisabledSensor(BaseSensorOperator):
    """Wait until a queue does not receive any more: it is disabled, stopped or faulted.

    One look costs a few milliseconds: it reads the table's log, without a JVM. Returns ``{"queue", "sub_queue", "state", "reason"}`` of the
    endpoint that is halted.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. (templated)
    :param sub_queue: whose endpoint: that of ``main``, the queue's own; of ``poison``, the reader of its poison sub-queue, which halts
        alone; or ``any`` of the two.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "conn_id")
    ui_color = "#efe3f7"

    def __init__(self, *, queue_name: str, sub_queue: str = "main", conn_id: str = QueueHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.sub_queue = choice("sub_queue", sub_queue, Endpoints)
        self.conn_id = conn_id

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once. Raises QueueNotFoundError, StoreUnreachableError."""
        del context
        from airflow_poison.core.message import SubQueue
        from airflow_poison.core.store.seam import QueueState

        control = QueueHook(self.conn_id).queue(self.queue_name).snapshot().control
        watched = (SubQueue.MAIN, SubQueue.POISON) if self.sub_queue is Endpoints.ANY else (SubQueue(self.sub_queue.value),)
        endpoints = [(place, *control.endpoint(place)) for place in watched]
        place, state, reason = next((endpoint for endpoint in endpoints if endpoint[1] is not QueueState.ENABLED), endpoints[0])
        self.log.info("Queue %r (%s) is %s. %s", self.queue_name, place, state, reason)
        found = {"queue": self.queue_name, "sub_queue": place.value, "state": state.value, "reason": reason}
        return PokeReturnValue(is_done=state is not QueueState.ENABLED, xcom_value=found)
