"""A queue whose retry cycles begin on a schedule: every RetryCycleDelay, the DAG returns what is due, and receives.

The simplest way, and the right one where messages come all the time: a message waits in ``refunds;retry`` for one delay at least, and for less than
two. ``RetryCycleTimetable`` takes the delay from the policy; after a pause, one run stands for all cycles that were missed.

Set ``REFUNDS_RETRY_CYCLE_DELAY`` to change it; seconds, default 1800.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from airflow_poison import Msmq4, Outage
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.timetables import RetryCycleTimetable

if TYPE_CHECKING:
    from airflow_poison import Message

DELAY = timedelta(seconds=float(os.environ.get("REFUNDS_RETRY_CYCLE_DELAY", "1800")))
POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=2, retry_cycle_delay=DELAY, receive_error_handling="Move")


def refund(message: Message) -> None:
    """Refund what the message asks for: the handler. Returning settles the message, raising rolls it back."""
    if message.json()["amount"] <= 0:
        raise ValueError("nothing to refund")


with DAG("retry_by_schedule", schedule=RetryCycleTimetable(POLICY), catchup=False, max_active_runs=1):
    retry_cycle(queue_name="refunds", policy=POLICY, handler=refund, outage=Outage())
