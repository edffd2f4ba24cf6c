"""QueuePoisonSensor: wait until messages are poison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison.core.watching.conditions import PoisonPresent
from airflow_poison.sensors.base import QueueSensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


class QueuePoisonSensor(QueueSensor):
    """Wait until messages are in the poison sub-queue.

    Systems that move poison to another queue (backout, exception destination) have it there: wait for that queue with ``QueueMessagesSensor``.
    Returns ``{"queue", "sub_queue", "messages", "oldest_enqueued_at"}``; a list of them for ``queue_names``.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. Either this or ``queue_names``. (templated)
    :param queue_names: several queues. (templated)
    :param count: how many at least.
    :param age: how long ago the oldest of them was sent at least. Since when it is poison is not known without reading it.
    :param match: ``any``: one of the queues is enough; ``all``: it must hold of each at the same time.
    :param deferrable: wait in the triggerer; default: Airflow's ``[operators] default_deferrable``.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "queue_names", "conn_id")

    def __init__(self, *, count: int = 1, age: timedelta | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._condition = PoisonPresent(count, age)

    @property
    def condition(self) -> PoisonPresent:
        """What is waited for."""
        return self._condition
