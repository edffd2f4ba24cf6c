"""EndpointSensor: what the sensors of a queue's state have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow_poison.sensors.base import QueueSensor

if TYPE_CHECKING:
    from airflow_poison.core.watching.conditions import EndpointCondition


class EndpointSensor(QueueSensor):
    """Wait until a condition holds of an endpoint of a queue.

    :param sub_queue: whose endpoint: that of ``main``, the queue's own; of ``poison``, the reader of its poison sub-queue, which halts
        alone; or ``any`` of the two.
    """

    waits_for: ClassVar[type[EndpointCondition]]

    def __init__(self, *, sub_queue: str = "main", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._condition = self.waits_for(sub_queue)

    @property
    def condition(self) -> EndpointCondition:
        """What is waited for."""
        return self._condition
