"""A queue whose retry cycles begin exactly when they are due, and at every RetryCycleDelay besides, should the triggerer be down.

What the handler refuses is parked in ``payments;retry``. A watcher of the queue sees its due time and makes a run at that instant: the run returns
the messages and receives them again. Send to the queue with ``airflow poison send``, or with a ``QueueSendOperator`` of another DAG: the arrival of
messages makes a run, too.

Set ``PAYMENTS_RETRY_CYCLE_DELAY`` to change how many seconds refused messages wait; default 1800.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from airflow_poison import Msmq4, Outage
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.timetables import retry_cycle_schedule

if TYPE_CHECKING:
    from airflow_poison import Message

DELAY = timedelta(seconds=float(os.environ.get("PAYMENTS_RETRY_CYCLE_DELAY", "1800")))
POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=2, retry_cycle_delay=DELAY, receive_error_handling="Move")


def pay(message: Message) -> None:
    """Pay what the message asks for: the handler. Returning settles the message, raising rolls it back."""
    if message.json()["amount"] <= 0:
        raise ValueError("nothing to pay")


with DAG(
    "retry_when_due",
    schedule=retry_cycle_schedule("payments", POLICY, on=("messages", "retry_due")),
    catchup=False,
    max_active_runs=1,  # what happens during a run makes one more run afterwards
):
    retry_cycle(queue_name="payments", policy=POLICY, handler=pay, outage=Outage())
