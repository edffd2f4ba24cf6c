"""QueueRetryDueSensor: wait until messages have waited long enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison.core.watching.conditions import RetryDue
from airflow_poison.sensors.base import QueueSensor

if TYPE_CHECKING:
    from collections.abc import Sequence


class QueueRetryDueSensor(QueueSensor):
    """Wait until a return would move something to an enabled queue: a retry cycle is over, or what a handler had postponed has its time.

    Returns ``{"queue", "due", "postponed", "waiting", "next_due_at"}``; a list of them for ``queue_names``. Deferred, it goes on at the instant
    at which the retry falls due.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. Either this or ``queue_names``. (templated)
    :param queue_names: several queues. (templated)
    :param match: ``any``: one of the queues is enough; ``all``: it must hold of each at the same time.
    :param deferrable: wait in the triggerer; default: Airflow's ``[operators] default_deferrable``.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "queue_names", "conn_id")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._condition = RetryDue()

    @property
    def condition(self) -> RetryDue:
        """What is waited for."""
        return self._condition
