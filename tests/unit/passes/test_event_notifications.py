"""Event notifications: a service that has subscribed gets a message whenever a queue is disabled, once, whatever dies (spec SB-16, SB-17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison import EVENT_NOTIFICATION, Contract, Message, Service, ServiceBroker
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.browse import look_up
from airflow_poison.passes.conversations import conversations, declare_services, drop_service
from airflow_poison.passes.dialogs import create, drop
from airflow_poison.passes.messages import Chosen
from airflow_poison.passes.relay import pull, transmit
from airflow_poison.rules.queue_disabling import CONTRACT, MESSAGE_TYPE, QueueDisabledDocument
from airflow_poison.values.errors import QueueHaltedError, ServiceNotFoundError, SettingError
from tests.given.passes import DiedError, Queue, a_queue

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

SEEN: list[tuple[str | None, bytes]] = []


def watch(message: Message) -> None:
    """What a subscriber does: note the document, and end the dialog."""
    assert message.conversation is not None
    SEEN.append((message.message_type, message.body))
    message.conversation.end()


@pytest.fixture
def orders(store: QueueStore, tmp_path: Path) -> Queue:
    return a_queue(store, tmp_path, ServiceBroker(database_name="shop")).sent("bad")


@pytest.fixture
def watchers(store: QueueStore, orders: Queue) -> QueueTable:
    """The queue of a service that has subscribed to what becomes of ``orders``."""
    SEEN.clear()
    table = declare(store, "watchers", ServiceBroker(), orders.clock)
    declare_services(store, table, [Service("Watch", [EVENT_NOTIFICATION])])
    create(store, orders.table, "people", "Watch", orders.clock)
    return table


def arrived(table: QueueTable) -> list[str]:
    """The queues that the messages of a queue say were disabled."""
    ids = [row["lookup_id"] for file in table.snapshot().files for row in table.read(file).to_pylist()]
    rows = look_up(table, Chosen.ids(ids))
    assert {row.message_type for row in rows} <= {MESSAGE_TYPE}
    return [QueueDisabledDocument.from_xml(row.body.decode()).queue for row in rows]


def receive(orders: Queue, table: QueueTable) -> int:
    return orders.having(table=table).receive("watch", handler=f"{__name__}:watch").received


def test_sb_16_sb_17_a_subscriber_receives_the_document_in_a_dialog_and_ends_it(orders: Queue, watchers: QueueTable) -> None:
    result = orders.receive()
    assert result.sent_on == {"watchers": 1}
    assert receive(orders, watchers) == 1
    [(kind, body)] = SEEN
    document = QueueDisabledDocument.from_xml(body.decode())
    assert (kind, document.queue, document.database_name, document.post_time) == (MESSAGE_TYPE, "orders", "shop", orders.clock.now())
    [row] = conversations(watchers, ended=True)
    assert (row.contract, row.state, watchers.snapshot().files, watchers.snapshot().transmissions) == (CONTRACT, "CD", (), ())


def test_sb_5_each_disabling_after_the_subscription_is_one_message(orders: Queue, watchers: QueueTable) -> None:
    orders.receive("1")
    disable(watchers, orders.clock)  # by hand: no event (section 11, item 3)
    enable(watchers, orders.clock)
    create(orders.store, orders.table, "late", "Watch", orders.clock)
    enable(orders.table, orders.clock)
    orders.receive("2")
    with pytest.raises(QueueHaltedError):
        orders.receive("3")
    assert arrived(watchers) == ["orders"] * 3, "two for the first, one for the one that began between"


@pytest.mark.parametrize("point", ["pass.receive.before_relay", "pass.notification.before_send", "pass.notification.after_send"])
@pytest.mark.parametrize("by", ["its own next pass", "a pass over the subscriber's queue"])
def test_a_process_that_dies_after_the_disabling_loses_and_doubles_nothing(
    orders: Queue, watchers: QueueTable, at_point: AtPoint, point: str, by: str
) -> None:
    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    with pytest.raises(DiedError):
        orders.receive()
    if by == "its own next pass":
        with pytest.raises(QueueHaltedError):
            orders.receive("next")
    else:
        pull(orders.store, watchers, orders.clock)
    assert arrived(watchers) == ["orders"]


def test_a_process_that_dies_while_it_subscribes_can_begin_again_and_hears_of_nothing_earlier(
    orders: Queue, watchers: QueueTable, at_point: AtPoint
) -> None:
    def die() -> None:
        raise DiedError

    orders.receive("1")
    before = len(arrived(watchers))
    at_point.do("pass.notification.before_record", die)
    with pytest.raises(DiedError):
        create(orders.store, orders.table, "late", "Watch", orders.clock)
    assert "late" not in orders.table.snapshot().control.event_notifications
    at_point.do("pass.notification.before_record", lambda: None)
    create(orders.store, orders.table, "late", "Watch", orders.clock)
    pull(orders.store, watchers, orders.clock)
    assert len(arrived(watchers)) == before


def test_two_that_send_it_at_once_send_it_once(orders: Queue, watchers: QueueTable, at_point: AtPoint) -> None:
    at_point.do("pass.notification.before_send", lambda: pull(orders.store, watchers, orders.clock))
    orders.receive()
    assert arrived(watchers) == ["orders"]


def test_sb_19_it_waits_for_a_service_that_is_missing_or_whose_queue_is_disabled(
    orders: Queue, watchers: QueueTable, caplog: pytest.LogCaptureFixture
) -> None:
    clock = orders.clock
    drop_service(watchers, "Watch")
    orders.receive("1")
    assert "Event notification 'people' of queue 'orders' waits: There is no service 'Watch'" in caplog.text
    declare_services(orders.store, watchers, [Service("Watch", [Contract("other", {"x": "ANY"})])])
    pull(orders.store, watchers, clock)
    declare_services(orders.store, watchers, [Service("Watch", [EVENT_NOTIFICATION])])
    disable(watchers, clock)
    pull(orders.store, watchers, clock)
    assert arrived(watchers) == []
    enable(watchers, clock)
    enable(orders.table, clock)
    orders.receive("2")
    assert arrived(watchers) == ["orders", "orders"]


def test_a_dropped_subscription_begins_anew(orders: Queue, watchers: QueueTable) -> None:
    drop(orders.table, "people", orders.clock)
    orders.receive("1")
    create(orders.store, orders.table, "people", "Watch", orders.clock)
    pull(orders.store, watchers, orders.clock)
    assert (arrived(watchers), orders.table.snapshot().control.event_notifications) == ([], {"people": "Watch"})


def test_what_cannot_be_a_subscription_is_refused(orders: Queue, watchers: QueueTable) -> None:
    declare_services(orders.store, watchers, [Service("Other", [Contract("other", {"x": "ANY"})])])
    declare_services(orders.store, watchers, [Service("Second", [EVENT_NOTIFICATION])])
    with pytest.raises(ServiceNotFoundError, match="no service 'watch'"):
        create(orders.store, orders.table, "n", "watch", orders.clock)
    with pytest.raises(SettingError, match="EVENT_NOTIFICATION"):
        create(orders.store, orders.table, "n", "Other", orders.clock)
    with pytest.raises(SettingError, match="a name that no other event notification of queue 'orders' has"):
        create(orders.store, orders.table, "people", "Second", orders.clock)
    with pytest.raises(SettingError, match="people"):
        drop(orders.table, "persons", orders.clock)


def test_a_subscriber_that_ends_with_an_error_ends_the_dialog_alone(orders: Queue, watchers: QueueTable) -> None:
    orders.receive()
    result = orders.having(table=watchers).receive("w", handler=f"{__name__}:refuse")
    transmit(orders.store, watchers, orders.clock)
    assert (result.settled, conversations(watchers)) == (1, ())
    assert (watchers.snapshot().files, watchers.snapshot().transmissions) == ((), ())


def refuse(message: Message) -> None:
    """Answer a notification with an error."""
    assert message.conversation is not None
    message.conversation.end(error=5)
