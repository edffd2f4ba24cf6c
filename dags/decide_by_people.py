"""A queue that one bad invoice disables, and people who decide what becomes of it.

Five failed deliveries in a row disable ``invoices``, by the rules of Service Broker: nothing is received until somebody acts, and what is sent
waits. The second DAG runs at that instant. It shows the suspected invoice as a required action in the Airflow UI, with its error and its body, and
waits for an answer: remove it (it is kept in ``invoices;poison``), return it with fresh attempts, enable the queue alone, or leave everything as it
is. Then the queue receives again, and the first DAG runs by itself.

Try it: unpause both, and send ``airflow poison send invoices '{"amount": 10}' '{"amount": -1}'``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG

from airflow_poison import ServiceBroker
from airflow_poison.assets import queue_asset
from airflow_poison.taskgroups import recovery, retry_cycle

if TYPE_CHECKING:
    from airflow_poison import Message

PATIENCE = timedelta(seconds=float(os.environ.get("INVOICES_RESPONSE_TIMEOUT", "28800")))


def pay(message: Message) -> None:
    """Pay an invoice: the handler. Returning settles the message, raising rolls it back."""
    if message.json()["amount"] <= 0:
        raise ValueError("nobody pays less than nothing")


def tell(context: Any) -> None:
    """Put your SlackNotifier, PagerdutyNotifier or SmtpNotifier here."""
    alert = context["poison_alert"]
    print(alert["reason"], alert["what_to_do"])  # noqa: T201  (to the task's log)


with DAG("pay_invoices", schedule=[queue_asset("invoices")], catchup=False, max_active_runs=1):
    retry_cycle(queue_name="invoices", policy=ServiceBroker(), handler=pay)

with DAG("decide_about_invoices", schedule=[queue_asset("invoices", on=("disabled",))], catchup=False, max_active_runs=1):
    recovery("invoices", response_timeout=PATIENCE, on_timeout="leave", on_asked=[tell], on_undecided=[tell])
