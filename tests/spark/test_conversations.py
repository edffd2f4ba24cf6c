"""Dialogs on Spark: each conversation is in one task, in its own order, over several files; replies arrive once and in order."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison import ServiceBroker
from airflow_poison.dialogs.acts import Dialog
from airflow_poison.dialogs.as_rows import MESSAGE_COLUMNS, table_to_messages
from airflow_poison.dialogs.services import Contract, Service
from airflow_poison.passes.alter import declare
from airflow_poison.passes.conversations import conversations, declare_services
from airflow_poison.passes.dialogs import begin_dialogs, end_conversation, send_on
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.relay import transmit
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import VirtualClock
from tests.spark.conversing import Warehouse

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.store.queue_table import QueueTable

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
PARTS = Contract("parts", {"order": "INITIATOR", "shipped": "TARGET"})
CLOCK = VirtualClock()


class Shop:
    """Two queues in a store on disk; the warehouse receives on Spark."""

    def __init__(self, folder: Path, spark: SparkSession, policy: ServiceBroker) -> None:
        root = str(folder / "store")
        self.store, self.spark, self.policy, self.handler = DeltaStore(root, durable=False), spark, policy, Warehouse(root)
        self.orders, self.warehouse = (declare(self.store, name, policy, CLOCK) for name in ("orders", "warehouse"))
        declare_services(self.store, self.orders, [Service("Orders", [PARTS])])
        declare_services(self.store, self.warehouse, [Service("Warehouse", [PARTS])])

    def begin(self, number: int, *bodies: bytes) -> tuple[str, ...]:
        dialogs = [Dialog(messages=[("order", body) for body in bodies]) for _ in range(number)]
        begun = begin_dialogs(
            self.orders, service="Orders", far_service="Warehouse", contract="parts", dialogs=dialogs, key=f"begin-{bodies!r}", clock=CLOCK
        )
        self.recovered()
        return begun.conversations

    def recovered(self) -> None:
        transmit(self.store, self.orders, CLOCK)

    def receive(self, key: str) -> ReceiveResult:
        return ReceivePass(
            table=self.warehouse,
            policy=self.policy,
            handler=self.handler,
            engine=lambda: SparkEngine(self.spark),
            clock=CLOCK,
            store=self.store,
        ).run(key)


def arrived(table: QueueTable) -> dict[str, list[bytes]]:
    """Bodies by conversation, in order of arrival."""
    found: dict[str, list[bytes]] = {}
    for file in sorted(table.snapshot().files, key=lambda file: file.min_lookup_id):
        for message in table_to_messages(table.read(file, list(MESSAGE_COLUMNS))):
            if message is not None:
                found.setdefault(message.envelope.conversation_id, []).append(message.body)
    return found


@pytest.mark.parametrize("scope", ["queue", "conversation_group"])
def test_sb_41_the_order_of_dialogs_over_several_files_and_tasks(tmp_path: Path, spark: SparkSession, scope: str) -> None:
    """Every dialog has a timer that is due, every third an Error, behind messages of its own in other files."""
    shop = Shop(tmp_path, spark, ServiceBroker(scope=scope))
    dialogs = shop.begin(12, b"timer")
    assert shop.receive("timers").settled == 12
    shop.handler.forget()
    for number, handle in enumerate(dialogs):
        send_on(shop.orders, handle, [("order", b"a"), ("order", b"raise"), ("order", b"c")], key=f"more-{number}", clock=CLOCK)
    shop.recovered()
    for number, handle in enumerate(dialogs[::3]):
        end_conversation(shop.orders, handle, error=9, key=f"end-{number}", clock=CLOCK)
    shop.recovered()
    CLOCK.advance(timedelta(minutes=2))

    result = shop.receive("all")

    calls = shop.handler.calls()
    for number, handle in enumerate(dialogs):
        mine = [said for name, _, said in calls if name == handle]
        expected = ["DialogTimer", "Error"] if number % 3 == 0 else ["DialogTimer", "a", "raise", "raise", "c"]
        assert mine == expected, "the handler ends a dialog that has an Error, so what is behind it is discarded (SB-30)"
    assert (result.received, result.discarded, result.sent) == (12 + 36 + 4, 12, 24)
    assert all(len({task for name, task, _ in calls if name == handle}) == 1 for handle in dialogs)
    assert len({task for _, task, _ in calls}) == (2 if scope == "conversation_group" else 1)
    for number, handle in enumerate(dialogs):
        assert arrived(shop.orders).get(handle, []) == ([] if number % 3 == 0 else [b"a", b"raise", b"c"])
    states = {row.handle: row.state for row in conversations(shop.warehouse, ended=True)}
    assert sorted(states.values()) == ["CD"] * 4 + ["CO"] * 8
