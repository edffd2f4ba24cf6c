"""QueueDisabledSensor: wait until a queue is halted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.watching.conditions import Halted
from airflow_poison.sensors.endpoint import EndpointSensor

if TYPE_CHECKING:
    from collections.abc import Sequence


class QueueDisabledSensor(EndpointSensor):
    """Wait until a queue does not receive any more: it is disabled, stopped or faulted.

    Returns ``{"queue", "sub_queue", "state", "reason"}`` of the endpoint that is halted; a list of them for ``queue_names``.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. Either this or ``queue_names``. (templated)
    :param queue_names: several queues. (templated)
    :param sub_queue: whose endpoint: that of ``main``, the queue's own; of ``poison``, the reader of its poison sub-queue, which halts
        alone; or ``any`` of the two.
    :param match: ``any``: one of the queues is enough; ``all``: it must hold of each at the same time.
    :param deferrable: wait in the triggerer; default: Airflow's ``[operators] default_deferrable``.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "queue_names", "conn_id")
    waits_for = Halted
