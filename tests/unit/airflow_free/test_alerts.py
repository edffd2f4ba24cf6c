"""Alerts come from recorded events, after the commit, at least once, with keys that stay the same when they are repeated."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Message, Msmq4
from airflow_poison.core.clock import VirtualClock
from airflow_poison.core.error_handler import ErrorHandler, PoisonErrorHandler
from airflow_poison.core.errors import AlertError, PoisonMessageError
from airflow_poison.core.events import EventType
from airflow_poison.core.passes.alerts import Alert, AlertKind, alert_subscription, send_alerts
from airflow_poison.core.passes.declare import declare
from airflow_poison.core.passes.engine import LocalEngine
from airflow_poison.core.passes.poison_errors import error_subscription, hand_over
from airflow_poison.core.passes.receive import ReceivePass
from airflow_poison.core.passes.return_due import return_due
from airflow_poison.core.passes.send import messages_to_batches, send
from airflow_poison.core.store import open_store
from airflow_poison.core.store.seam import QueueState

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.core.policies.seam import Policy
    from airflow_poison.core.store.seam import QueueStore, QueueTable

CLOCK = VirtualClock()


def never(message: Message) -> None:
    raise ValueError("no")


@pytest.fixture(params=["delta", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStore:
    return open_store(str(tmp_path) if request.param == "delta" else f"memory://{tmp_path}")


def orders(store: QueueStore, handling: str, messages: int = 3) -> QueueTable:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling=handling)
    table = declare(store, "orders", policy, CLOCK)
    send(table, messages_to_batches([b"{}"] * messages), key=f"send-{table.snapshot().version}", clock=CLOCK)
    return table


def receive(store: QueueStore, table: QueueTable, policy: Policy | None = None, key: str = "run") -> None:
    from airflow_poison.core.policies import policy_from_dict

    rules = policy or policy_from_dict(table.snapshot().control.policy)
    ReceivePass(table, rules, never, LocalEngine, CLOCK, isolation="none", store=store).run(key)


def test_messages_that_went_to_poison_make_one_alert_and_only_once(store: QueueStore) -> None:
    table = orders(store, "Move", messages=25)
    receive(store, table)
    told: list[Alert] = []
    assert send_alerts(table, "me", told.append, CLOCK) == told
    [alert] = told
    assert (alert.kind, alert.event, alert.queue, alert.count) == (AlertKind.POISON, "MOVED_POISON", "orders", 25)
    assert alert.lookup_ids == tuple(range(1, 21))
    assert "QueueHook().put_back('orders')" in alert.what_to_do
    assert send_alerts(table, "me", told.append, CLOCK) == []


@pytest.mark.parametrize(("handling", "event", "word"), [("Drop", "DROPPED", "gone"), ("Reject", "REJECTED", "orders.dead-letter")])
def test_dropped_and_rejected_messages_are_alerted_with_what_to_do(store: QueueStore, handling: str, event: str, word: str) -> None:
    table = orders(store, handling)
    receive(store, table)
    [alert] = send_alerts(table, "me", lambda _alert: None, CLOCK)
    assert (alert.event, alert.count) == (event, 3)
    assert word in alert.what_to_do


def test_a_halted_queue_is_alerted_with_its_reason_and_its_message(store: QueueStore) -> None:
    table = orders(store, "Fault")
    receive(store, table)
    assert table.snapshot().control.state is QueueState.FAULTED
    [alert] = send_alerts(table, "me", lambda _alert: None, CLOCK)
    assert (alert.kind, alert.event, alert.lookup_ids) == (AlertKind.QUEUE_DISABLED, "FAULTED", (1,))
    assert "is faulted: message 1" in alert.reason
    assert "remove('orders', 1)" in alert.what_to_do


def test_an_alert_that_fails_is_given_again_with_the_same_key_though_more_has_happened(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    tried: list[Alert] = []

    def broken(alert: Alert) -> None:
        tried.append(alert)
        raise ConnectionError("no network")

    with pytest.raises(AlertError, match=r"1 of 1 alerts of queue 'orders' failed: MOVED_POISON \(ConnectionError: no network\)"):
        send_alerts(table, "me", broken, CLOCK)
    orders(store, "Move", messages=2)
    receive(store, table, key="later")
    [again] = send_alerts(table, "me", tried.append, CLOCK)
    assert (again.key, again.count) == (tried[0].key, 3)
    [later] = send_alerts(table, "me", tried.append, CLOCK)
    assert (later.count, later.lookup_ids) == (2, (4, 5))
    assert later.key != again.key


def test_a_process_that_dies_while_telling_leaves_the_alert_to_the_next(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    keys: list[str] = []

    def die(alert: Alert) -> None:
        keys.append(alert.key)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send_alerts(table, "me", die, CLOCK)
    [alert] = send_alerts(table, "me", lambda _alert: None, CLOCK)
    assert [alert.key] == keys


def test_every_subscriber_is_told_and_one_that_begins_now_hears_nothing_of_the_past(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    alert_subscription(table, "late", CLOCK).begin()
    assert len(send_alerts(table, "early", lambda _alert: None, CLOCK)) == 1
    assert len(send_alerts(table, "other", lambda _alert: None, CLOCK)) == 1
    assert send_alerts(table, "late", lambda _alert: None, CLOCK) == []


def test_only_the_kinds_that_somebody_wants_are_told(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    assert send_alerts(table, "me", lambda _alert: None, CLOCK, kinds=[AlertKind.QUEUE_DISABLED]) == []


def test_a_run_without_anything_to_tell_writes_nothing(store: QueueStore) -> None:
    table = orders(store, "Move")
    version = table.snapshot().version
    send_alerts(table, "me", lambda _alert: None, CLOCK)
    assert table.snapshot().version == version


def test_an_error_handler_is_told_of_a_hopeless_message_once_in_each_cycle(store: QueueStore) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=2, retry_cycle_delay=timedelta(0), receive_error_handling="Fault")
    table = declare(store, "orders", policy, CLOCK)
    send(table, messages_to_batches([b"{}"]), key="k", clock=CLOCK)
    handler = PoisonErrorHandler()
    error_subscription(table, "me", CLOCK).begin()
    for cycle in range(3):
        return_due(table, CLOCK)
        receive(store, table, policy, key=f"cycle {cycle}")
        assert hand_over(table, "me", handler, CLOCK) == 1
    assert handler.lookup_ids == [1, 1, 1]  # spec WCF-18: max_retry_cycles + 1 times
    assert [event.type for event in table.events() if event.type is EventType.FAULTED] == [EventType.FAULTED]


def test_an_error_handler_that_raises_is_told_again(store: QueueStore) -> None:
    class Broken(ErrorHandler):
        def handle_error(self, error: BaseException) -> bool:
            raise error

    table = orders(store, "Move", messages=1)
    receive(store, table)
    with pytest.raises(PoisonMessageError):
        hand_over(table, "me", Broken(), CLOCK)
    assert hand_over(table, "me", PoisonErrorHandler(), CLOCK) == 1
    assert hand_over(table, "me", PoisonErrorHandler(), CLOCK) == 0
