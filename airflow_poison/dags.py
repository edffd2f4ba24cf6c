"""queue_alerts: a DAG that sends alerts about queues, for teams that alert in one place."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AssetAny, AssetOrTimeSchedule, DeltaTriggerTimetable

from airflow_poison.assets import queue_asset
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.notifications import AlertTargets, Targets
from airflow_poison.operators.manage import QueueAlertOperator
from airflow_poison.passes.runs import check_named_once
from airflow_poison.rules.settings import duration
from airflow_poison.store import check_name
from airflow_poison.values.errors import SettingError

EVENTS = "events"
"""The schedule of a DAG that runs when something has happened."""
_SETTINGS = {"catchup": False, "max_active_runs": 1}


def queue_alerts(
    dag_id: str,
    queues: Sequence[str],
    *,
    on_queue_disabled: Targets = None,
    on_stopped: Targets = None,
    on_poison: Targets = None,
    on_blocked: Targets = None,
    on_outage: Targets = None,
    on_outage_over: Targets = None,
    on_backlog: Targets = None,
    backlog_older_than: timedelta | None = None,
    schedule: Any = EVENTS,
    look_every: timedelta = timedelta(minutes=5),
    poll_interval: float = 5.0,
    conn_id: str = QueueHook.default_conn_name,
    **dag_kwargs: Any,
) -> DAG:
    """Return a DAG with one task for each queue, which gives the queue's outstanding alerts to the notifiers.

    What is outstanding is read from the queue itself, which also records the alerts that were sent: none is lost or sent twice by runs that fail, are
    killed or are cleared, except alerts that were being sent at that moment; these have the same ``key``. The first run reports what the queues have
    recorded until then, one alert for each kind. A queue whose notifier fails, or that is missing, fails its own task.

    Assign the DAG to a name of the DAG file: ``alerts = queue_alerts("alerts", ["orders"], on_poison=notifier)``.

    :param dag_id: the DAG's id. A DAG with another id is another subscriber, which gets all alerts.
    :param queues: the queues' names.
    :param schedule: ``events``: when a queue has an event to alert about, and for ``on_backlog`` every ``look_every``;
        or any schedule of a DAG.
    :param look_every: how often backlogs are looked for, with ``schedule="events"``.
    :param poll_interval: seconds between two looks at the store, with ``schedule="events"``.
    :param conn_id: connection of type ``poison``.
    :param dag_kwargs: further parameters of the DAG, for example ``default_args`` or ``tags``; ``catchup`` is False and ``max_active_runs`` 1
        unless they say otherwise.
    Raises SettingError, QueueNameError.

    What is not described here is as in QueueAlertOperator.
    """
    names = _names(queues)
    targets = {"on_queue_disabled": on_queue_disabled, "on_stopped": on_stopped, "on_poison": on_poison, "on_blocked": on_blocked}
    targets |= {"on_outage": on_outage, "on_outage_over": on_outage_over, "on_backlog": on_backlog}
    alerts = AlertTargets.of(**targets, backlog_older_than=backlog_older_than)
    if not alerts:
        raise SettingError("on_poison", None, f"a target: at least one of {', '.join(targets)}")
    if schedule == EVENTS:
        schedule = _schedule(names, alerts, duration("look_every", look_every, timedelta(seconds=1)), conn_id, poll_interval)
    with DAG(dag_id, schedule=schedule, **{**_SETTINGS, **dag_kwargs}) as dag:
        for name in names:
            QueueAlertOperator(task_id=name, queue_name=name, conn_id=conn_id, backlog_older_than=backlog_older_than, **targets)
    return dag


def _names(queues: Sequence[str]) -> list[str]:
    if isinstance(queues, str) or not queues:
        raise SettingError("queues", queues, "a list of at least one queue's name")
    check_named_once(queues)
    return [check_name(queue) for queue in queues]


def _schedule(names: Sequence[str], alerts: AlertTargets, look_every: timedelta, conn_id: str, poll_interval: float) -> Any:
    targets_of = {"disabled": alerts.queue_disabled or alerts.stopped, "poisoned": alerts.poison, "blocked": alerts.blocked}
    targets_of["outage"] = alerts.outage or alerts.outage_over
    happenings = [happening for happening, targets in targets_of.items() if targets]
    timetable = DeltaTriggerTimetable(look_every)
    if not happenings:
        return timetable
    assets = AssetAny(*(queue_asset(name, on=happenings, conn_id=conn_id, poll_interval=poll_interval) for name in names))
    return AssetOrTimeSchedule(timetable=timetable, assets=assets) if alerts.backlog else assets
