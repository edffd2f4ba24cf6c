"""A message that fails in every delivery disables its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import DAG

from airflow_poison import ServiceBroker
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.taskgroups import retry_cycle
from tests.live.alert_file import AlertFile

if TYPE_CHECKING:
    from airflow_poison import Message


def take(message: Message) -> None:
    if message.text == "bad":
        raise ValueError("this one never works")


with DAG("disabled_orders", schedule=None):
    send = QueueSendOperator(task_id="send", queue_name="orders", messages=["good", "bad", "behind"], policy=ServiceBroker())
    send >> retry_cycle("orders", ServiceBroker(), take, on_queue_disabled=AlertFile())
