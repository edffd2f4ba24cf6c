"""One transaction over several queues: each counts its rollbacks, and the fifth in a row of any disables all, whatever dies (spec SB-4, SB-9)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Msmq4, ServiceBroker
from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.alter import declare, enable
from airflow_poison.rules.queue_disabling import QueueDisabledDocument
from airflow_poison.rules.service_broker import ROLLBACKS
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import QueueHaltedError, QueueNotFoundError, SettingError
from airflow_poison.values.events import EventType
from tests.given.passes import DiedError, Queue, a_queue

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

OFF = QueueState.DISABLED
ON = QueueState.ENABLED


class Three:
    """A queue whose handler's transaction spans two others."""

    def __init__(self, store: QueueStore, folder: Path) -> None:
        self.orders = a_queue(store, folder, ServiceBroker())
        self.bills, self.stock = (declare(store, name, ServiceBroker(), self.orders.clock) for name in ("bills", "stock"))

    def receive(self, key: str = "run", **changes: object) -> None:
        self.orders.receive(key, **({"spans": ("bills", "stock")} | changes))

    def of(self, table: QueueTable) -> Queue:
        return self.orders.having(table=table)

    @property
    def states(self) -> list[QueueState]:
        return [table.snapshot().control.state for table in (self.orders.table, self.bills, self.stock)]

    @property
    def counts(self) -> list[int]:
        return [table.snapshot().control.counters.get(ROLLBACKS, 0) for table in (self.orders.table, self.bills, self.stock)]

    def disabled(self) -> list[int]:
        """How often each queue was disabled."""
        return [len(list(table.events(types={EventType.QUEUE_DISABLED}))) for table in (self.orders.table, self.bills, self.stock)]


@pytest.fixture
def three(store: QueueStore, tmp_path: Path) -> Three:
    return Three(store, tmp_path)


def test_sb_4_sb_5_five_rollbacks_disable_all_queues_with_an_event_each(three: Three) -> None:
    three.orders.sent("bad")
    three.receive()
    assert (three.states, three.counts, three.disabled()) == ([OFF] * 3, [5, 5, 5], [1, 1, 1])
    [alert] = send_alerts(three.bills, "people", {"notes": lambda _alert: None}, three.orders.clock)
    assert "Queue 'bills' was halted (disabled) with queue 'orders': a transaction received from both." in alert.reason
    assert QueueDisabledDocument.from_xml(alert.details["document"]).queue == "bills"
    with pytest.raises(QueueHaltedError, match="disabled"):
        three.of(three.bills).receive("later")


def four(three: Three, table: QueueTable) -> None:
    """Roll four receives of a queue back."""
    row = {ROLLBACKS: 4}
    table.alter(lambda control: control.with_counters(row))


def test_sb_9_the_count_of_one_queue_disables_those_with_lower_counts_too(three: Three) -> None:
    four(three, three.stock)
    three.orders.sent("bad")
    three.receive()
    assert (three.states, three.counts) == ([OFF] * 3, [1, 1, 5])


def test_sb_6_sb_7_a_commit_sets_the_counts_of_all_queues_to_zero(three: Three) -> None:
    four(three, three.stock)
    three.orders.sent("good")
    three.receive()
    assert (three.states, three.counts) == ([ON] * 3, [0, 0, 0])


def test_sb_11_a_queue_without_poison_handling_is_neither_counted_nor_disabled(three: Three) -> None:
    off = {**ServiceBroker().to_dict(), "poison_message_handling": False}
    three.stock.alter(lambda control: replace(control, policy=off))
    three.orders.sent("bad")
    three.receive()
    assert (three.states, three.counts) == ([OFF, OFF, ON], [5, 5, 0])


def test_sb_18_nothing_is_received_while_another_queue_is_disabled(three: Three) -> None:
    three.orders.sent("bad")
    three.receive()
    enable(three.orders.table, three.orders.clock)
    with pytest.raises(QueueHaltedError, match=r"9617.*'bills' is disabled.*the transaction of queue 'orders' receives from it"):
        three.receive("again")
    enable(three.bills, three.orders.clock)
    enable(three.stock, three.orders.clock)
    three.receive("and again")
    assert (three.states, three.disabled()) == ([OFF] * 3, [2, 2, 2])


@pytest.mark.parametrize("point", ["pass.spanning.before_counts", "pass.spanning.before_disabling"])
def test_whoever_receives_next_disables_what_a_dead_process_has_left(three: Three, at_point: AtPoint, point: str) -> None:
    def die() -> None:
        raise DiedError

    three.orders.sent("bad")
    at_point.do(point, die)
    with pytest.raises(DiedError):
        three.receive()
    assert three.states == [OFF, ON, ON]
    with pytest.raises(QueueHaltedError):
        three.of(three.bills).receive("bills")
    with pytest.raises(QueueHaltedError):
        three.of(three.stock).receive("stock", spans=("bills",))
    assert (three.states, three.disabled()) == ([OFF] * 3, [1, 1, 1])
    enable(three.bills, three.orders.clock)
    three.of(three.bills).receive("after the recovery")
    assert three.disabled() == [1, 1, 1], "what was disabled once and enabled is not disabled again"


@pytest.mark.parametrize(
    ("policy", "spans", "match"),
    [
        (ServiceBroker(), ("orders",), "other queues than 'orders'"),
        (ServiceBroker(), "bills", "a list of other queues"),
        (ServiceBroker(scope="conversation_group"), ("bills",), "scope='queue'"),
        (ServiceBroker(disables="at_limit"), ("bills",), "disables='all_received'"),
        (Msmq4(), ("bills",), "Service Broker's rules"),
        (ServiceBroker(), ("retries",), "Service Broker's rules"),
    ],
)
def test_what_cannot_span_is_refused_before_anything_is_claimed(three: Three, policy: Policy, spans: tuple[str, ...], match: str) -> None:
    declare(three.orders.store, "retries", Msmq4(), three.orders.clock)
    three.orders.sent("bad")
    with pytest.raises(SettingError, match=match):
        three.receive(policy=policy, spans=spans)
    with pytest.raises(QueueNotFoundError, match="none"):
        three.receive(spans=("none",))
    assert (three.orders.table.snapshot().claims, three.disabled()) == ((), [0, 0, 0])
