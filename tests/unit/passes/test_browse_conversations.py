"""Browse: one conversation with what waits for it and for its partner, and how many go on, in both stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Contract, Dialog, Service, ServiceBroker
from airflow_poison.dialogs.acts import target_handle
from airflow_poison.passes import conversations
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.conversations import conversation, declare_services, number
from airflow_poison.passes.dialogs import begin_dialogs, end_conversation, send_on
from airflow_poison.passes.move import move
from airflow_poison.passes.relay import transmit
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import ConversationNotFoundError

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

PARTS = Contract("parts", {"order": "INITIATOR", "photo": "INITIATOR"})


@dataclass
class Two:
    """Two services, each with a queue of its own."""

    store: QueueStore
    orders: QueueTable
    warehouse: QueueTable
    clock: VirtualClock

    def begin(self, *types: str) -> list[str]:
        """Begin a dialog for each of these first messages; return their handles at the initiator."""
        dialogs = [Dialog(messages=[(each, b"")]) for each in types]
        begun = begin_dialogs(
            self.orders, service="Orders", far_service="Warehouse", contract="parts", dialogs=dialogs, key=" ".join(types), clock=self.clock
        )
        self.recovered()
        return list(begun.conversations)

    def send(self, handle: str, *types: str) -> None:
        send_on(self.orders, handle, [(each, b"") for each in types], key=" ".join(types), clock=self.clock)
        self.recovered()

    def recovered(self) -> None:
        transmit(self.store, self.orders, self.clock)


@pytest.fixture
def two(store: QueueStore) -> Two:
    clock = VirtualClock()
    orders, warehouse = (declare(store, name, ServiceBroker(), clock) for name in ("orders", "warehouse"))
    declare_services(store, orders, [Service("Orders", [PARTS])])
    declare_services(store, warehouse, [Service("Warehouse", [PARTS])])
    return Two(store, orders, warehouse, clock)


def test_a_side_has_its_messages_in_the_order_of_their_arrival_wherever_they_are(two: Two) -> None:
    first, second = two.begin("order", "photo")
    two.send(first, "photo", "order")
    move(two.warehouse, two.clock, [3], "poison")
    seen = conversation(two.warehouse, target_handle(first), 10)
    assert [(message.lookup_id, message.message_type, message.sub_queue) for message in seen.messages] == [
        (1, "order", "main"),
        (3, "photo", "poison"),
        (4, "order", "main"),
    ]
    assert (seen.row.far_handle, seen.row.far_service, seen.more) == (first, "Orders", 0)
    cut = conversation(two.warehouse, target_handle(first), 2)
    assert ([message.lookup_id for message in cut.messages], cut.more) == ([1, 3], 1)
    assert conversation(two.orders, second, 10).row.far_handle == target_handle(second)


def test_sb_19_what_a_disabled_queue_does_not_take_is_unsent_at_its_sender_in_its_own_conversation(two: Two) -> None:
    first, second = two.begin("order", "photo")
    disable(two.warehouse, two.clock)
    two.send(first, "photo", "order", "photo")
    assert conversation(two.orders, first, 10).unsent == {"order": 1, "photo": 2}
    assert conversation(two.orders, second, 10).unsent == {}
    assert conversation(two.warehouse, target_handle(first), 10).unsent == {}
    enable(two.warehouse, two.clock)
    two.recovered()
    assert conversation(two.orders, first, 10).unsent == {}


def test_a_handle_of_the_other_side_is_none_here(two: Two) -> None:
    [handle] = two.begin("order")
    with pytest.raises(ConversationNotFoundError, match="8426"):
        conversation(two.warehouse, handle, 10)


def test_conversations_that_go_on_are_counted_also_those_whose_first_message_waits(two: Two) -> None:
    assert number(two.orders) == number(two.warehouse) == 0
    first, _ = two.begin("order", "photo")
    assert number(two.orders) == number(two.warehouse) == 2
    end_conversation(two.orders, first, cleanup=True, key="end", clock=two.clock)
    assert number(two.orders) == 1


@pytest.mark.parametrize("bound", ["COUNTED_ROWS", "COUNTED_BYTES"])
def test_conversations_are_not_counted_where_that_means_much_reading(two: Two, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    two.begin("order", "photo")
    monkeypatch.setattr(conversations, bound, 1)
    monkeypatch.setattr(conversations, "conversations", lambda _table: pytest.fail("they were read"))
    assert number(two.orders) is number(two.warehouse) is None


def test_a_conversation_whose_first_message_people_have_put_aside_goes_on_and_is_counted(two: Two) -> None:
    two.begin("order", "photo")
    move(two.warehouse, two.clock, [2], "poison")
    assert number(two.warehouse) == 2
