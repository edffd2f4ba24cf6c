"""retry_cycle: return what is due, receive, alert. Scheduled every RetryCycleDelay, it is the life of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.notifications.targets import AlertTargets
from airflow_poison.operators.alert import QueueAlertOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.return_due import QueueReturnOperator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.delivery.handlers import HandlerLike
    from airflow_poison.core.failures import ErrorHandler
    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.notifications.targets import Targets


def retry_cycle(
    queue: str,
    policy: Policy,
    handler: HandlerLike,
    *,
    group_id: str = "retry_cycle",
    services: Sequence[Service] = (),
    on_queue_disabled: Targets = None,
    on_stopped: Targets = None,
    on_poison: Targets = None,
    on_blocked: Targets = None,
    on_backlog: Targets = None,
    backlog_older_than: timedelta | None = None,
    max_messages: int | str = 10_000_000,
    isolation: str = "process",
    unprocessable: Sequence[str | type[BaseException]] = (),
    py_files: Sequence[str] = (),
    error_handler: type[ErrorHandler] | None = None,
    conn_id: str = QueueHook.default_conn_name,
    default_args: dict[str, Any] | None = None,
) -> TaskGroup:
    """Chain the three tasks of a queue's cycle: ``return`` >> ``receive`` >> ``alert``.

    ``alert`` is a teardown: it runs also when ``receive`` failed, and does not hide that failure from the DAG run. What follows the group
    waits for ``receive``. Without a notifier there is no ``alert``.

    :param queue: the queue's name; made when it is missing. (templated)
    :param policy: the queue's rules.
    :param handler: an importable name (``"shop.arrivals:land"``) or a function; called with a Message, raises to roll back. (templated, the name)
    :param group_id: the task group's id.
    :param services: that receive from the queue, declared on it before each pass.
    :param on_queue_disabled: notifiers, or functions of the context, told when the queue was disabled, stopped or faulted.
    :param on_stopped: told, of these halts, only of those that stopped or faulted the endpoint.
    :param on_poison: told when messages were moved to poison or to another queue, dropped or rejected.
    :param on_blocked: told when a message blocks the queue, or waits at its place.
    :param on_backlog: told when a message in ``main`` or ``retry`` was sent longer ago than ``backlog_older_than``, once for each backlog.
    :param backlog_older_than: a duration above 0; given together with ``on_backlog``.
    :param max_messages: how many messages a pass takes at most. (templated)
    :param isolation: ``process`` or ``none``, see QueueReceiveOperator.
    :param unprocessable: exception types that go to the final disposition at once.
    :param py_files: files (``.py``, ``.zip``, ``.egg``, ``.whl``) shipped to Spark's executors, for handlers and what they import. (templated)
    :param error_handler: a class told of each poison message, once a cycle.
    :param conn_id: connection of type ``poison``. (templated)
    :param default_args: default arguments of the group's tasks.
    """
    with TaskGroup(
        group_id,
        default_args=default_args or {},  # type: ignore[arg-type]  # a converter of attrs hides the parameter's type
        tooltip=f"The cycle of queue {queue!r}",
    ) as group:
        returned = QueueReturnOperator(task_id="return", queue_name=queue, policy=policy, conn_id=conn_id)
        received = QueueReceiveOperator(
            task_id="receive",
            queue_name=queue,
            policy=policy,
            services=services,
            handler=handler,
            max_messages=max_messages,
            isolation=isolation,
            unprocessable=unprocessable,
            py_files=py_files,
            error_handler=error_handler,
            conn_id=conn_id,
        )
        returned >> received
        told: dict[str, Any] = {
            "on_queue_disabled": on_queue_disabled,
            "on_stopped": on_stopped,
            "on_poison": on_poison,
            "on_blocked": on_blocked,
            "on_backlog": on_backlog,
            "backlog_older_than": backlog_older_than,
        }
        if AlertTargets.of(**told):
            alert = QueueAlertOperator(task_id="alert", queue_name=queue, conn_id=conn_id, **told)
            received >> alert.as_teardown(on_failure_fail_dagrun=False)
    return group
