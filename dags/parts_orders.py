"""The shop of the parts example: it orders parts in dialogs with the warehouse, and notes at each customer's order what became of it.

Start it by hand, with the orders as parameter. It runs again by itself whenever the warehouse has said something. A run may be repeated at any point:
an order is taken once (its number), its dialog is begun once (its key), and noting an answer once more changes nothing.

The other side is ``parts_warehouse.py``; what both agree on is in the package ``parts``, which goes into the DAGs folder, too.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import DAG, Param, task
from parts import CONTRACT, ORDER, POLICY, SHOP, SHOP_QUEUE, WAREHOUSE, WAREHOUSE_QUEUE, customers

from airflow_poison.assets import queue_asset
from airflow_poison.operators.receive import QueueReceiveOperator

ORDERS = [[1, "bolt", 100], [2, "gear", 4], [3, "shaft", 2], [4, "valve", 250], [5, "bolt", 0], [6, "valve", 6]]

with DAG(
    "parts_orders",
    description="Orders of parts, each a dialog with the warehouse",
    schedule=[queue_asset(SHOP_QUEUE)],
    catchup=False,
    max_active_runs=1,
    params={"orders": Param(ORDERS, type="array", description="number, part and pieces of each")},
    doc_md=__doc__,
    tags=["airflow-poison", "example"],
):

    @task
    def order_parts(params: dict[str, Any] | None = None) -> int:
        """Begin a dialog for each order that is new; return how many."""
        from airflow_poison import Dialog
        from airflow_poison.hooks.poison import QueueHook

        hook = QueueHook()
        for queue, service in ((SHOP_QUEUE, SHOP), (WAREHOUSE_QUEUE, WAREHOUSE)):  # whoever orders from a service that is not there gets error -8490
            hook.queue(queue, POLICY, [service])
        customers.take((params or {})["orders"])
        new = customers.new()
        for number, part, pieces in new:
            dialog = Dialog(messages=[(ORDER, json.dumps({"part": part, "pieces": pieces}).encode())])
            begun = hook.queue(SHOP_QUEUE).begin_dialogs(
                service=SHOP.name, far_service=WAREHOUSE.name, contract=CONTRACT.name, dialogs=[dialog], key=f"order {number}"
            )
            customers.sent(number, begun.conversations[0])
        return len(new)

    order_parts() >> QueueReceiveOperator(task_id="receive", queue_name=SHOP_QUEUE, policy=POLICY, services=[SHOP], handler=customers.note_reply)
