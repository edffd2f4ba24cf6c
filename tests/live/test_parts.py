"""The example of the parts warehouse in the real scheduler: its DAGs run by what arrives, and people end the conversation of the poison order."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from parts.stock import STOCK

from tests.live.beside import beside
from tests.live.test_recovery import answer, parked, path
from tools.demo_conversations.books import faults
from tools.demo_conversations.sides import SHOP, WAREHOUSE, Sides

if TYPE_CHECKING:
    from tests.live.live_airflow import LiveAirflow

DAGS = Path(__file__).parents[2] / "dags"


@beside
def test_a_withdrawn_part_poisons_its_order_people_end_its_conversation_and_everything_adds_up(airflow: LiveAirflow, tmp_path: Path) -> None:
    sides = Sides(airflow.store_root, tmp_path / "parts")
    shutil.copytree(DAGS / "parts", airflow.dags / "parts", ignore=shutil.ignore_patterns("__pycache__"))
    settings = {"PARTS_HOME": str(tmp_path / "parts")}
    warehouse, recovery = sorted(airflow.dags_of(DAGS / "parts_warehouse.py", environment=settings))
    shop = airflow.dag(DAGS / "parts_orders.py", environment=settings)

    airflow.trigger(shop)
    run = airflow.wait_for_run(recovery)
    parked(airflow, run)
    assert [(part, pieces) for _, part, pieces in sides.shipments()] == [("bolt", 100), ("gear", 4)]
    assert {alert["event"] for alert in sides.alerts()} == {"QUEUE_DISABLED", "DECISION_WANTED"}

    airflow.trigger(shop, {"orders": [[7, "gear", 1]]})
    airflow.until(lambda: [order.state for order in sides.orders() if order.number == 7] == ["sent"], "the shop has ordered once more")
    assert sides.is_off()
    assert sides.on_their_way(SHOP) >= 1

    question = airflow.call("GET", path(run)).body
    assert "this part was withdrawn from stock" in question["body"]
    assert answer(airflow, run, question["options"][0]) == 200
    airflow.wait(run)
    airflow.until(lambda: all(order.state in {"shipped", "refused"} for order in sides.orders()), "the shop has all answers")
    airflow.until(lambda: not sides.left(SHOP) + sides.left(WAREHOUSE), "no message is left")
    for dag_id in (shop, warehouse, recovery):
        airflow.client.pause(dag_id, paused=True)

    notes = {order.number: (order.state, order.note) for order in sides.orders()}
    assert notes == {
        1: ("shipped", ""),
        2: ("shipped", ""),
        3: ("refused", "Unable to process message. (127)"),
        4: ("refused", "We ship at most 100 pieces of a part. (1)"),
        5: notes[5],
        6: ("shipped", ""),
        7: ("shipped", ""),
    }
    assert notes[5][0] == "refused"
    assert "(-9615)" in notes[5][1]
    assert list(faults(sides, STOCK, 7)) == []
    airflow.remove_dag(shop)
    airflow.remove_dag(warehouse)
