"""QueueAlertOperator: alert people about events of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.links.queue import EventsLink, PoisonLink, QueueLink
from airflow_poison.notifications import AlertTargets
from airflow_poison.operators.base import QueueOperator
from airflow_poison.operators.identity import subscriber
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueueNotFoundError

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_poison.notifications import Targets


class QueueAlertOperator(QueueOperator):
    """Give the queue's outstanding alerts to notifiers: at least once, with a key in ``poison_alert`` by which a receiver drops repeats.

    What is outstanding is read from the queue's recorded events, whichever run caused them; so an alert that a killed task still owed is given by
    the next run. The task fails when a notifier fails; what the passes did stays. Returns the alerts as dicts.

    :param on_queue_disabled: notifiers, or functions of the context, called when the queue was disabled, stopped or faulted.
    :param on_stopped: called only for halts that stopped or faulted the endpoint.
    :param on_poison: called when messages were moved to poison or to another queue, dropped or rejected.
    :param on_blocked: called when a message blocks the queue, or waits at its place.
    :param on_outage: called once when failures come from an outage of a system that the handler needs.
    :param on_outage_over: called once when a probe has succeeded.
    :param on_backlog: called when a message in ``main`` or ``retry`` was sent longer ago than ``backlog_older_than``, once for each backlog.
    :param backlog_older_than: a duration above 0; given together with ``on_backlog``.
    """

    ui_color = "#fbe3e4"
    operator_extra_links = (QueueLink(), PoisonLink(), EventsLink())

    def __init__(
        self,
        *,
        on_queue_disabled: Targets = None,
        on_stopped: Targets = None,
        on_poison: Targets = None,
        on_blocked: Targets = None,
        on_outage: Targets = None,
        on_outage_over: Targets = None,
        on_backlog: Targets = None,
        backlog_older_than: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.alerts = AlertTargets.of(
            on_queue_disabled,
            on_poison,
            on_blocked,
            on_stopped=on_stopped,
            on_backlog=on_backlog,
            backlog_older_than=backlog_older_than,
            on_outage=on_outage,
            on_outage_over=on_outage_over,
        )

    def execute(self, context: Context) -> list[dict[str, object]]:
        """Give what is outstanding. Raises AlertError when a notifier failed, QueueNotFoundError unless it is a teardown."""
        hook = QueueHook(self.conn_id)
        try:
            queue = hook.queue(self.queue_name)
        except QueueNotFoundError:
            if not self.is_teardown:
                raise
            self.log.info("There is no queue %r: the run has not made it. So there are no alerts.", self.queue_name)
            return []
        given = self.alerts.send(queue, subscriber(context, hook), context, SystemClock(), self.log)
        self.log.info("%s alerts of queue %r given.", len(given), self.queue_name)
        return given
