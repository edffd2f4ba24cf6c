"""Two cycles over 5,000 messages, three of them bad; the handler waits in one message, in mid-pass, until its node says go on."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from airflow_poison import Msmq4
from airflow_poison.operators.manage import QueueReturnOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator

if TYPE_CHECKING:
    from airflow_poison import Message

POLICY = Msmq4(
    receive_retry_count=1,
    max_retry_cycles=1,
    retry_cycle_delay=timedelta(0),
    receive_error_handling="Move",
    transaction_timeout=timedelta(minutes=9),  # the handler waits
)
MESSAGES, BAD, WAITS = 5_000, {"100", "4400", "4900"}, "4500"


def take(message: Message) -> None:
    home = Path.home()
    with (home / "calls").open("a") as file:
        file.write(f"{message.text}\n")
    while message.text == WAITS and not (home / "go on").exists():
        time.sleep(0.1)
    if message.text in BAD:
        raise ValueError(f"{message.text} is bad")


with DAG("two_nodes", schedule=None, default_args={"retries": 3, "retry_delay": timedelta(seconds=1)}):
    send = QueueSendOperator(task_id="send", queue_name="numbers", messages=[str(number) for number in range(1, MESSAGES + 1)], policy=POLICY)
    first = QueueReceiveOperator(task_id="first", queue_name="numbers", handler=take)
    back = QueueReturnOperator(task_id="return", queue_name="numbers")
    second = QueueReceiveOperator(task_id="second", queue_name="numbers", handler=take)
    send >> first >> back >> second
