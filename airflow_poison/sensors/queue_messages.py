"""QueueMessagesSensor: wait until messages are available."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison.core.watching.conditions import MessagesAvailable
from airflow_poison.sensors.base import QueueSensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


class QueueMessagesSensor(QueueSensor):
    """Wait until messages are in a sub-queue.

    Without ``age``, messages that a pass could take now: those that one holds do not count, nor does ``main`` while a message blocks the queue, nor
    does what an endpoint reads that is disabled, stopped or faulted. With ``age``, the backlog: all that waits. Returns ``{"queue", "sub_queue",
    "messages", "oldest_enqueued_at"}``; a list of them for ``queue_names``. In ``main`` a timer or a lifetime of a conversation that has ended
    counts, too, as ``timers_due`` (spec SB-56).

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. Either this or ``queue_names``. (templated)
    :param queue_names: several queues. (templated)
    :param sub_queue: ``main``, ``retry``, ``poison``, ``postponed`` (given back by a handler) or ``transmission`` (sent to a disabled queue).
    :param count: how many at least.
    :param age: how long ago the oldest of them was sent at least.
    :param match: ``any``: one of the queues is enough; ``all``: it must hold of each at the same time.
    :param deferrable: wait in the triggerer; default: Airflow's ``[operators] default_deferrable``.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "queue_names", "conn_id")

    def __init__(self, *, sub_queue: str = "main", count: int = 1, age: timedelta | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._condition = MessagesAvailable(sub_queue, count, age)

    @property
    def condition(self) -> MessagesAvailable:
        """What is waited for."""
        return self._condition
