"""QueueDisabledSensor: wait until a queue is halted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class QueueDisabledSensor(BaseSensorOperator):
    """Wait until a queue does not receive any more: it is disabled, stopped or faulted.

    One look costs a few milliseconds: it reads the table's log, without a JVM. Returns ``{"queue", "state", "reason"}``.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. (templated)
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "conn_id")
    ui_color = "#efe3f7"

    def __init__(self, *, queue_name: str, conn_id: str = QueueHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.conn_id = conn_id

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once. Raises QueueNotFoundError, StoreUnreachableError."""
        del context
        from airflow_poison.core.store.seam import QueueState

        control = QueueHook(self.conn_id).queue(self.queue_name).snapshot().control
        state = {"queue": self.queue_name, "state": control.state.value, "reason": control.reason}
        self.log.info("Queue %r is %s. %s", self.queue_name, control.state.value, control.reason)
        return PokeReturnValue(is_done=control.state is not QueueState.ENABLED, xcom_value=state)
