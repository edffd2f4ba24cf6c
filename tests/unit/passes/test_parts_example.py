"""The example of the parts warehouse, without Airflow: its contract, its handlers, and what a poison order does to both sides."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from parts import CONTRACT, ORDER, POLICY, SHOP, SHOP_QUEUE, WAREHOUSE, WAREHOUSE_QUEUE, customers, stock

from airflow_poison.dialogs.acts import Dialog
from airflow_poison.passes.alter import declare
from airflow_poison.passes.conversations import conversations, declare_services
from airflow_poison.passes.dialogs import begin_dialogs
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.recovery import recover
from airflow_poison.passes.relay import transmit
from airflow_poison.store.control import QueueState
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.clock import VirtualClock

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

CLOCK = VirtualClock()


class Died(BaseException):
    """Stands for the death of the process."""


@dataclass
class Factory:
    """The shop and the warehouse, each with its queue."""

    store: QueueStore
    shop: QueueTable
    warehouse: QueueTable
    passes: list[str] = field(default_factory=list)

    def order(self, *orders: tuple[int, str, int]) -> None:
        customers.take(orders)
        for number, part, pieces in customers.new():
            dialog = Dialog(messages=[(ORDER, json.dumps({"part": part, "pieces": pieces}).encode())])
            begun = begin_dialogs(
                self.shop,
                service=SHOP.name,
                far_service=WAREHOUSE.name,
                contract=CONTRACT.name,
                dialogs=[dialog],
                key=f"order {number}",
                clock=CLOCK,
            )
            customers.sent(number, begun.conversations[0])
        transmit(self.store, self.shop, CLOCK)

    def receive(self, table: QueueTable) -> ReceiveResult:
        handler = stock.ship if table is self.warehouse else customers.note_reply
        self.passes.append(table.name)
        return ReceivePass(table=table, policy=POLICY, handler=handler, engine=LocalEngine, clock=CLOCK, isolation="none", store=self.store).run(
            f"{len(self.passes)}"
        )

    def exchange(self) -> None:
        """Receive on both sides until nothing waits."""
        while any(file.sub_queue == "main" for table in (self.shop, self.warehouse) for file in table.snapshot().files):
            self.receive(self.warehouse)
            self.receive(self.shop)

    @property
    def pieces(self) -> dict[str, int]:
        with stock.stock() as tables:
            return dict(tables.execute("SELECT part, pieces FROM stock").fetchall())

    @property
    def orders(self) -> dict[int, tuple[str, str]]:
        with customers.orders() as table:
            return {number: (state, note) for number, state, note in table.execute("SELECT number, state, note FROM customer_order")}

    @property
    def states(self) -> tuple[list[str], list[str]]:
        """Of the endpoints of each side."""
        shop, warehouse = (sorted(row.state for row in conversations(table, ended=True)) for table in (self.shop, self.warehouse))
        return shop, warehouse


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Factory:
    monkeypatch.setenv("PARTS_HOME", str(tmp_path / "parts"))
    stock.fill()
    store = MemoryStore()
    shop, warehouse = (declare(store, name, POLICY, CLOCK) for name in (SHOP_QUEUE, WAREHOUSE_QUEUE))
    declare_services(store, shop, [SHOP])
    declare_services(store, warehouse, [WAREHOUSE])
    return Factory(store, shop, warehouse)


def test_an_order_is_shipped_and_both_sides_end_the_dialog(factory: Factory) -> None:
    factory.order((1, "bolt", 100), (2, "gear", 4))
    factory.exchange()
    assert factory.orders == {1: ("shipped", ""), 2: ("shipped", "")}
    assert factory.pieces == {"bolt": 400, "gear": 36, "shaft": 12, "valve": 30}
    assert factory.states == (["CD", "CD"], ["CD", "CD"])


def test_an_order_taken_twice_is_sent_once(factory: Factory) -> None:
    factory.order((1, "bolt", 1))
    factory.order((1, "bolt", 7))
    factory.exchange()
    assert factory.pieces["bolt"] == 499
    assert len(conversations(factory.shop, ended=True)) == 1
    with customers.orders() as table:
        assert table.execute("SELECT pieces FROM customer_order").fetchall() == [(1,)]


def test_an_invalid_request_is_no_poison_its_reader_ends_the_dialog(factory: Factory) -> None:
    factory.order((1, "bolt", 101), (2, "bolt", 1))
    result = factory.receive(factory.warehouse)
    factory.exchange()
    assert (result.rollbacks, result.halted) == (0, None)
    assert factory.orders == {1: ("refused", "We ship at most 100 pieces of a part. (1)"), 2: ("shipped", "")}


def test_an_order_that_does_not_fit_the_contract_never_reaches_the_handler(factory: Factory) -> None:
    factory.order((1, "bolt", 0))
    factory.exchange()
    state, note = factory.orders[1]
    assert (state, "(-9615)" in note) == ("refused", True)
    assert factory.pieces["bolt"] == 500


def test_a_withdrawn_part_poisons_its_order_and_the_shop_hears_of_it(factory: Factory) -> None:
    factory.order((1, "bolt", 1), (2, "shaft", 2), (3, "gear", 1))
    stock.withdraw("shaft")

    result = factory.receive(factory.warehouse)
    assert (result.settled, result.rollbacks, result.untouched) == (1, 5, 1)
    assert result.halted is not None
    assert result.halted["error"] == "sqlite3.IntegrityError: this part was withdrawn from stock"
    factory.order((4, "valve", 3))
    assert sum(file.rows for file in factory.shop.snapshot().transmissions) == 1
    factory.receive(factory.shop)
    assert {number: state for number, (state, _) in factory.orders.items()} == {1: "shipped", 2: "sent", 3: "sent", 4: "sent"}

    recover(factory.warehouse, CLOCK, store=factory.store)
    assert factory.warehouse.snapshot().control.state is QueueState.ENABLED
    factory.exchange()
    assert factory.orders[2] == ("refused", "Unable to process message. (127)")
    assert {number: state for number, (state, _) in factory.orders.items()} == {1: "shipped", 2: "refused", 3: "shipped", 4: "shipped"}
    assert factory.pieces == {"bolt": 499, "gear": 39, "shaft": 12, "valve": 27}
    assert factory.states == (["CD"] * 4, ["CD"] * 4)


def test_a_delivery_that_is_repeated_ships_nothing_twice(factory: Factory, at_point: AtPoint) -> None:
    factory.order((1, "bolt", 1))

    def die() -> None:
        raise Died

    at_point.do("delivery.dialogs.after_effect", die)  # the order is shipped, and the queue does not know it yet
    with pytest.raises(Died):
        factory.receive(factory.warehouse)
    assert factory.pieces["bolt"] == 499

    CLOCK.advance(timedelta(minutes=5))
    factory.exchange()
    assert factory.pieces["bolt"] == 499
    assert factory.orders[1][0] == "shipped"
