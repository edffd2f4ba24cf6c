"""The warehouse of the parts example: it ships what dialogs order, and people look after it when an order is poison.

After an order was accepted, its part is withdrawn from stock: the database refuses to take pieces of it, the delivery is rolled back, and the same
message comes again. Five rollbacks in a row disable the queue, and somebody is alerted. The second DAG shows them the order and its error in the
Airflow UI. They end its conversation: the order goes, the queue receives again, and the shop gets an Error message that says what happened.

The other side is ``parts_orders.py``; what both agree on is in the package ``parts``, which goes into the DAGs folder, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow.sdk import DAG, BaseNotifier, task
from parts import POLICY, WAREHOUSE, WAREHOUSE_QUEUE, home, stock

from airflow_poison.assets import queue_asset
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.taskgroups import recovery

if TYPE_CHECKING:
    from airflow.sdk import Context


class AlertFile(BaseNotifier):
    """Writes each alert as a line of JSON to a file; put your SlackNotifier, PagerdutyNotifier or SmtpNotifier here."""

    def notify(self, context: Context) -> None:
        """Append the alert."""
        with (home() / "alerts.jsonl").open("a") as file:
            file.write(json.dumps(context["poison_alert"], default=str) + "\n")  # type: ignore[typeddict-item]  # Airflow knows its own keys only


with DAG(
    "parts_warehouse",
    description="Ships ordered parts",
    schedule=[queue_asset(WAREHOUSE_QUEUE)],
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["airflow-poison", "example"],
):

    @task
    def change_parts() -> None:
        """Let the changes of the day take effect: shafts are withdrawn. An order for some is on its way."""
        stock.fill()
        stock.withdraw("shaft")

    change_parts() >> QueueReceiveOperator(
        task_id="receive",
        queue_name=WAREHOUSE_QUEUE,
        policy=POLICY,
        services=[WAREHOUSE],
        handler=stock.ship,
        on_queue_disabled=[AlertFile()],
    )

with DAG(
    "parts_warehouse_recovery",
    description="People decide about an order that cannot be processed",
    schedule=[queue_asset(WAREHOUSE_QUEUE, on=("disabled",))],
    catchup=False,
    max_active_runs=1,
    tags=["airflow-poison", "example"],
):
    recovery(WAREHOUSE_QUEUE, on_asked=[AlertFile()])
