"""A DAG file that uses everything this package offers to one: operators, sensors, decorators, task groups, assets, a DAG of alerts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, task

from airflow_poison import Files, Kafka, Msmq4, Outage, Unprocessable
from airflow_poison.assets import queue_asset
from airflow_poison.dags import queue_alerts
from airflow_poison.dialogs.services import DEFAULT_CONTRACT, Service
from airflow_poison.operators.ask import QueueAskOperator
from airflow_poison.operators.desk import QueueGroupsOperator, QueueQueryOperator, QueueRedriveOperator, QueueRulesOperator, QueueSendToKafkaOperator
from airflow_poison.operators.dialogs import QueueBeginDialogOperator, QueueEndConversationOperator, QueueSendOnConversationOperator
from airflow_poison.operators.manage import (
    QueueAlertOperator,
    QueueAlterOperator,
    QueueInspectOperator,
    QueueMaintainOperator,
    QueueMoveOperator,
    QueueRecoverOperator,
    QueueRemoveOperator,
    QueueReturnOperator,
)
from airflow_poison.operators.receive import QueueReceiveOperator, QueueToReceive
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from airflow_poison.sensors import (
    QueueDisabledSensor,
    QueueEnabledSensor,
    QueueMessagesSensor,
    QueuePoisonGoneSensor,
    QueuePoisonSensor,
    QueueRetryDueSensor,
)
from airflow_poison.taskgroups import recovery, retry_cycle
from airflow_poison.timetables import retry_cycle_schedule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_poison import Message

POLICY = Msmq4(retry_cycle_delay=timedelta(minutes=30), retry_window="* 22-23,0-5 * * MON-FRI Europe/Berlin", receive_error_handling="Move")


def land(message: Message) -> None:
    """Refuse every message."""
    raise Unprocessable(message.text)


def rows(messages: DataFrame) -> DataFrame:
    """Return a row for every message."""
    return messages


with DAG("every_part", schedule=[queue_asset("arrivals", on=("messages", "retry_due"))]):
    sent = QueueSendOperator(task_id="send", queue_name="arrivals", path="/in", format="csv", body="line")
    QueueSendOperator(task_id="take", queue_name="arrivals", source=Files("/landing/*.json"))
    QueueSendToKafkaOperator(task_id="to_kafka", queue_name="arrivals", kafka=Kafka("letters"), lookup_ids=[1])
    sent >> retry_cycle(queue_name="arrivals", policy=POLICY, handler=land, on_queue_disabled=print, on_poison=[print]) >> recovery("arrivals")
    QueueReceiveOperator(
        task_id="many",
        handler=land,
        queues=["orders", QueueToReceive(queue_name="bills", policy=POLICY), {"queue_name": "notes", "policy": {"system": "ListenerPort"}}],
    )
    QueueGroupsOperator(task_id="groups", queue_name="arrivals")
    QueueQueryOperator(task_id="query", queue_name="arrivals", sql="select 1")
    QueueRedriveOperator(task_id="redrive", queue_name="arrivals", selection={"error": "{{ params.error }}"}, canary={"messages": 10, "share": 0.9})
    QueueReceiveSubmitOperator(task_id="submit", queue_name="arrivals", handler=land)
    QueueReceiveOperator(
        task_id="transform",
        queue_name="arrivals",
        transform=rows,
        schema="line string",
        output="/landed",
        output_schema="line string",
        outage=Outage(),
    )
    QueueReceiveOperator(task_id="batches", queue_name="arrivals", handler=land, batch="arrow", schema="line string", output={"landed": "/landed"})
    QueueReturnOperator(task_id="return", queue_name="arrivals") >> QueueAlertOperator(task_id="alert", queue_name="arrivals", on_poison=print)
    QueueInspectOperator(task_id="look", queue_name="arrivals") >> QueueRemoveOperator(task_id="remove", queue_name="arrivals", lookup_ids=[1])
    QueueAlterOperator(task_id="enable", queue_name="arrivals", action="enable") >> QueueMoveOperator(task_id="move", queue_name="arrivals")
    asked = QueueAskOperator(task_id="ask", queue_name="arrivals")
    asked >> QueueRecoverOperator(task_id="recover", queue_name="arrivals", decision=asked.output)
    QueueRulesOperator(task_id="rules", queue_name="arrivals", rules=[{"name": "rest", "verb": "tell"}])
    QueueBeginDialogOperator(
        task_id="begin",
        queue_name="arrivals",
        service="Arrivals",
        far_service="Fares",
        contract="DEFAULT",
        messages=[("DEFAULT", "how much?")],
        services=[Service("Arrivals", [DEFAULT_CONTRACT])],
    )
    QueueSendOnConversationOperator(task_id="send_on", queue_name="arrivals", conversation="c", messages=[("DEFAULT", "please")])
    QueueEndConversationOperator(task_id="end", queue_name="arrivals", conversation="c", error=127, enable=True, on_conversation_ended=print)
    QueueMaintainOperator(task_id="maintain", queue_name="arrivals")
    for sensor in (QueueDisabledSensor, QueueEnabledSensor, QueueMessagesSensor, QueuePoisonSensor, QueuePoisonGoneSensor, QueueRetryDueSensor):
        sensor(task_id=sensor.__name__, queue_name="arrivals", deferrable=True)

    @task.send(queue_name="arrivals", policy=POLICY)
    def some() -> list[str]:
        """Send a message."""
        return ["one"]

    @task.receive(queue_name="arrivals", policy=POLICY)
    def take(message: Message) -> None:
        """Settle a message."""

    some() >> take()  # type: ignore[call-arg]  # the queue gives the message

alerts = queue_alerts("alerts", ["arrivals", "orders"], on_poison=print)

scheduled = DAG("every_part_when_due", schedule=retry_cycle_schedule("arrivals", POLICY))
