"""Ten numbers are sent; odd ones fail in every delivery, and end in poison in the second cycle."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from airflow_poison import Msmq4
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.taskgroups import retry_cycle
from tests.live.alert_file import AlertFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison import Message

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(seconds=1), receive_error_handling="Move")


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(10).selectExpr("id AS number")


def only_even(message: Message) -> None:
    if message.json()["number"] % 2:
        raise ValueError(f"{message.json()['number']} is odd")


with DAG("odd_numbers", schedule=None):
    send = QueueSendOperator(task_id="send", queue_name="numbers", dataframe=numbers, policy=POLICY, send_key="the numbers")
    send >> retry_cycle("numbers", POLICY, only_even, on_poison=AlertFile())
