"""Task groups: whole patterns of a queue in one call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import TaskGroup

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.notifications import AlertTargets, Targets
from airflow_poison.operators.ask import QueueAskOperator
from airflow_poison.operators.desk import QueueRulesOperator
from airflow_poison.operators.dialogs import REMOVAL_ERROR
from airflow_poison.operators.manage import QueueAlertOperator, QueueRecoverOperator, QueueReturnOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.passes.declaration import ReceiveOptions, takes_options
from airflow_poison.rules.queue_disabling import REMOVAL
from airflow_poison.sensors import QueueDisabledSensor

if TYPE_CHECKING:
    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_poison.delivery.handlers import HandlerLike
    from airflow_poison.desk.rules import Rule
    from airflow_poison.rules.policy import Policy
    from airflow_poison.values.failures import ErrorHandler


def recovery(
    queue_name: str,
    *,
    group_id: str = "recovery",
    sub_queue: str = "any",
    wait: bool = False,
    poke_interval: float = 60.0,
    wait_timeout: timedelta | None = None,
    response_timeout: timedelta | None = None,
    on_timeout: str = "leave",
    assigned_users: HITLUser | list[HITLUser] | None = None,
    to_queue: str | None = None,
    error: int | str = REMOVAL_ERROR,
    description: str = REMOVAL.description,
    on_conversation_ended: Targets = None,
    on_asked: Targets = None,
    on_undecided: Targets = None,
    most_of_body: int = 2_000,
    conn_id: str = QueueHook.default_conn_name,
    default_args: dict[str, Any] | None = None,
) -> TaskGroup:
    """Chain the tasks for a halted queue: ``ask`` >> ``recover``, with ``wait`` before them where it is set.

    ``ask`` shows people the queue's state and the suspected message, changes nothing, and waits for one of them to answer in the Airflow UI: remove
    the message, return it, enable the queue alone, or leave it; for a message of a conversation also: end that with an error. ``recover`` does that
    in the safe order (spec SB-34): first the message is handled, while no pass can receive it, then the queue is enabled. What is removed is kept;
    the messages of a conversation that is ended are gone. A queue that receives, and one that is to be left, skip what follows.

    For a queue that is disabled, stopped or faulted, under whichever system. Schedule the DAG by ``queue_asset(..., on=("disabled",))``, or let
    it wait.

    :param group_id: the task group's id.
    :param wait: begin with a sensor that waits until the queue is halted; False: a queue that receives now skips all.
    :param poke_interval: seconds between two looks of that sensor.
    :param wait_timeout: how long it waits; None: as long as Airflow's sensors do.
    :param default_args: default arguments of the group's tasks.

    What is not described here is as in QueueRecoverOperator and QueueAskOperator.
    """
    with TaskGroup(
        group_id,
        default_args=default_args or {},  # type: ignore[arg-type]  # a converter of attrs hides the parameter's type
        tooltip=f"The recovery of queue {queue_name!r} when it is halted",
    ) as group:
        both: dict[str, Any] = {"queue_name": queue_name, "to_queue": to_queue, "error": error, "description": description, "conn_id": conn_id}
        ask = QueueAskOperator(
            task_id="ask",
            sub_queue=sub_queue,
            response_timeout=response_timeout,
            on_timeout=on_timeout,
            on_asked=on_asked,
            assigned_users=assigned_users,
            most_of_body=most_of_body,
            **both,
        )
        recover = QueueRecoverOperator(
            task_id="recover", decision=ask.output, on_conversation_ended=on_conversation_ended, on_undecided=on_undecided, **both
        )
        ask >> recover
        if wait:
            timeout = {} if wait_timeout is None else {"timeout": wait_timeout.total_seconds()}
            halted = QueueDisabledSensor(
                task_id="wait", queue_name=queue_name, sub_queue=sub_queue, poke_interval=poke_interval, mode="reschedule", conn_id=conn_id, **timeout
            )
            halted >> ask
    return group


@takes_options
def retry_cycle(
    queue_name: str,
    policy: Policy,
    handler: HandlerLike | None = None,
    *,
    group_id: str = "retry_cycle",
    on_queue_disabled: Targets = None,
    on_stopped: Targets = None,
    on_poison: Targets = None,
    on_blocked: Targets = None,
    on_outage: Targets = None,
    on_outage_over: Targets = None,
    on_backlog: Targets = None,
    backlog_older_than: timedelta | None = None,
    py_files: Sequence[str] = (),
    rules: Sequence[Rule] = (),
    error_handler: type[ErrorHandler] | None = None,
    conn_id: str = QueueHook.default_conn_name,
    spark_conn_id: str | None = None,
    default_args: dict[str, Any] | None = None,
    **options: Unpack[ReceiveOptions],
) -> TaskGroup:
    """Chain the three tasks of a queue's cycle: ``return`` >> ``receive`` >> ``alert``; with ``rules`` four: these run before ``receive``.

    ``alert`` is a teardown: it runs also when ``receive`` failed, and does not hide that failure from the DAG run. What follows the group
    waits for ``receive``. Without a notifier there is no ``alert``.

    :param queue_name: the queue's name; made when it is missing. (templated)
    :param policy: the queue's rules.
    :param group_id: the task group's id.
    :param rules: automatic actions on poison messages, see QueueRulesOperator. What a rule asks waits as a paused plan; the cycle goes on.
    :param default_args: default arguments of the group's tasks.

    :param options: other settings of the receive, see ``ReceiveOptions``.

    What is not described here is as in QueueReceiveOperator and QueueAlertOperator.
    """
    with TaskGroup(
        group_id,
        default_args=default_args or {},  # type: ignore[arg-type]  # a converter of attrs hides the parameter's type
        tooltip=f"The cycle of queue {queue_name!r}",
    ) as group:
        returned = QueueReturnOperator(task_id="return", queue_name=queue_name, policy=policy, conn_id=conn_id)
        received = QueueReceiveOperator(
            task_id="receive",
            queue_name=queue_name,
            policy=policy,
            handler=handler,
            py_files=py_files,
            **options,
            error_handler=error_handler,
            conn_id=conn_id,
            spark_conn_id=spark_conn_id,
        )
        returned >> received
        if rules:
            ruled = QueueRulesOperator(task_id="rules", queue_name=queue_name, rules=rules, wait=False, conn_id=conn_id)
            returned >> ruled >> received
        targets: dict[str, Any] = {
            "on_queue_disabled": on_queue_disabled,
            "on_stopped": on_stopped,
            "on_poison": on_poison,
            "on_blocked": on_blocked,
            "on_outage": on_outage,
            "on_outage_over": on_outage_over,
            "on_backlog": on_backlog,
            "backlog_older_than": backlog_older_than,
        }
        if AlertTargets.of(**targets):
            alert = QueueAlertOperator(task_id="alert", queue_name=queue_name, conn_id=conn_id, **targets)
            received >> alert.as_teardown(on_failure_fail_dagrun=False)
    return group
