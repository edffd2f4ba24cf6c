"""A handler that hangs in one message until a file is there, received from with a Spark, and a time-out, that the test chooses.

The run that goes on has time enough: it is another parse of this file, when the file is there.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from airflow_poison import Msmq4
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator

if TYPE_CHECKING:
    from airflow_poison import Message

FOLDER = Path(os.environ["STOPPED_FOLDER"])
NAME = os.environ["STOPPED_NAME"]
CONNECTION = os.environ.get("STOPPED_CONNECTION", "poison_default")
POLICY = Msmq4(receive_retry_count=3, max_retry_cycles=1, receive_error_handling="Move", transaction_timeout=timedelta(minutes=10))


SECONDS = "600" if (FOLDER / "go on").exists() else os.environ.get("STOPPED_SECONDS", "600")


def hang(message: Message) -> None:
    with (FOLDER / "calls").open("a") as file:
        file.write(f"{message.text} {os.getpid()}\n")
    while message.text == "3" and not (FOLDER / "go on").exists():
        time.sleep(0.1)


with DAG(NAME, schedule=None):
    send = QueueSendOperator(
        task_id="send",
        queue_name=NAME,
        messages=[str(number) for number in range(1, 6)],
        policy=POLICY,
        send_key="five messages",
        conn_id=CONNECTION,
    )
    send >> QueueReceiveOperator(
        task_id="receive",
        queue_name=NAME,
        handler=hang,
        conn_id=CONNECTION,
        execution_timeout=timedelta(seconds=float(SECONDS)),
    )
