"""A timer or a lifetime that has ended is something to receive: it activates as a message does (spec SB-22, SB-56)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.dialogs.acts import Dialog
from airflow_poison.dialogs.services import DEFAULT, DEFAULT_CONTRACT, Service
from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.conversations import declare_services
from airflow_poison.passes.dialogs import begin_dialogs, end_conversation
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.clock import VirtualClock
from airflow_poison.watching.conditions import MessagesAvailable
from airflow_poison.watching.queue_events import Happening, ripens
from tests.unit.watching.test_news import Reader

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.watching.conditions import Answer

MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def orders(store: QueueStore, clock: VirtualClock) -> QueueTable:
    """A queue with two dialogs whose timers expire after one and after three minutes; their partner takes nothing yet."""
    tables = [declare(store, name, ServiceBroker(), clock) for name in ("orders", "warehouse")]
    for table, service in zip(tables, ("Orders", "Warehouse"), strict=True):
        declare_services(store, table, [Service(service, [DEFAULT_CONTRACT])])
    dialogs = [Dialog(messages=[(DEFAULT, b"x")], timer=minutes * MINUTE) for minutes in (1, 3)]
    begin_dialogs(tables[0], service="Orders", far_service="Warehouse", contract=DEFAULT, dialogs=dialogs, key="k", clock=clock)
    return tables[0]


def receive(store: QueueStore, table: QueueTable, clock: VirtualClock) -> int:
    receiving = ReceivePass(
        table=table, policy=ServiceBroker(), handler=lambda _message: None, engine=LocalEngine, clock=clock, isolation="none", store=store
    )
    return receiving.run(f"run-{clock.now().isoformat()}").received


def available(table: QueueTable, clock: VirtualClock) -> Answer:
    return MessagesAvailable().met(table.snapshot(), clock.now())


def test_a_due_timer_is_available_once_and_the_next_one_is_waited_for(store: QueueStore, orders: QueueTable, clock: VirtualClock) -> None:
    began, reader = clock.now(), Reader(Happening.MESSAGES, orders)
    assert (available(orders, clock).met, available(orders, clock).not_before) == (False, began + MINUTE)
    assert (reader.told(clock.now()), ripens(Happening.MESSAGES, orders.snapshot(), clock.now())) == ([], began + MINUTE)

    clock.advance(MINUTE)
    assert available(orders, clock).met
    assert available(orders, clock).facts["timers_due"] is True
    [told] = reader.told(clock.now())
    assert (told["count"], told["timers_due"]) == (0, True)
    assert receive(store, orders, clock) == 1
    assert (available(orders, clock).met, available(orders, clock).not_before) == (False, began + 3 * MINUTE)
    assert reader.told(clock.now()) == []

    clock.advance(2 * MINUTE)
    assert len(reader.told(clock.now())) == 1
    assert receive(store, orders, clock) == 1
    clock.advance(MINUTE)
    assert (available(orders, clock).met, available(orders, clock).not_before) == (False, None)


def test_sb_22_a_disabled_queue_has_nothing_to_receive_until_it_is_enabled(store: QueueStore, orders: QueueTable, clock: VirtualClock) -> None:
    disable(orders, clock)
    clock.advance(MINUTE)
    assert not available(orders, clock).met
    enable(orders, clock)
    assert available(orders, clock).facts["messages"] == 1
    assert receive(store, orders, clock) == 1


def test_other_sub_queues_and_backlogs_know_no_timers(orders: QueueTable, clock: VirtualClock) -> None:
    clock.advance(MINUTE)
    for condition in (MessagesAvailable("retry"), MessagesAvailable("poison"), MessagesAvailable(age=timedelta(0)), MessagesAvailable(count=2)):
        answer = condition.met(orders.snapshot(), clock.now())
        assert (answer.met, "timers_due" in answer.facts) == (False, condition.count == 2)


def test_nobody_is_alerted_of_messages_that_went_with_a_conversation_that_somebody_has_ended(
    store: QueueStore, orders: QueueTable, clock: VirtualClock
) -> None:
    clock.advance(MINUTE)
    receive(store, orders, clock)
    warehouse, told = store.open("warehouse"), list[object]()
    reader = Reader(Happening.POISONED, warehouse)
    for number, row in enumerate(warehouse.read(warehouse.snapshot().files[0])["conversation_id"].to_pylist()):
        assert row is not None
        end_conversation(warehouse, row, error=1, key=f"e{number}", clock=clock)
    assert [event.type.value for event in warehouse.events()].count("DROPPED") == 2
    assert (send_alerts(warehouse, "me", {"notes": told.append}, clock), reader.told(clock.now())) == ([], [])
