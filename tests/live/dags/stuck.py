"""A handler that hangs in one message until a file is there; it writes down whom it was called for, and by which process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from airflow_poison import Msmq4
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator

if TYPE_CHECKING:
    from airflow_poison import Message

FOLDER = Path(os.environ["STUCK_FOLDER"])
POLICY = Msmq4(receive_retry_count=3, max_retry_cycles=1, receive_error_handling="Move")


def hang(message: Message) -> None:
    with (FOLDER / "calls").open("a") as file:
        file.write(f"{message.text} {os.getpid()}\n")
    while message.text == "3" and not (FOLDER / "go on").exists():
        time.sleep(0.1)


with DAG("stuck", schedule=None):
    send = QueueSendOperator(
        task_id="send", queue_name="stuck", messages=[str(number) for number in range(1, 6)], policy=POLICY, send_key="five messages"
    )
    send >> QueueReceiveOperator(task_id="receive", queue_name="stuck", handler=hang)
