"""Writes the tables of this version's format, with passes that died in them: ``python tests/store/tables/make_tables.py <folder>``."""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison import Dialog, Service, ServiceBroker
from airflow_poison.dialogs.services import DEFAULT_CONTRACT
from airflow_poison.passes.alter import declare
from airflow_poison.passes.conversations import declare_services
from airflow_poison.passes.dialogs import begin_dialogs
from airflow_poison.passes.due import return_due
from airflow_poison.passes.relay import transmit
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values import fault_points
from tests.given.passes import DiedError, DyingEngine, a_queue

if TYPE_CHECKING:
    from airflow_poison import Message
    from tests.given.passes import Queue

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=30), receive_error_handling="Move")


def main(folder: Path, calls: Path) -> None:
    """Messages in each sub-queue, a pass that died after its deliveries, one that died before its commit, and letters that nobody has sent on."""
    store = DeltaStore(str(folder))
    orders = a_queue(store, calls, POLICY)
    orders.sent("ok 1", "bad 2", "ok 3", "later 4", "never 5", key="first").receive("one")
    orders.clock.advance(timedelta(minutes=31))
    return_due(orders.table, orders.clock)
    orders.receive("two")
    orders.sent("ok 6", "bad 7", key="second").receive("three")
    orders.sent("ok 8", "bad 9", "ok 10", key="third")
    with suppress(DiedError):
        orders.having(engine=DyingEngine).receive("died")
    orders.sent("ok 11", "ok 12", key="fourth")
    rejecting = replace(POLICY, receive_error_handling="Reject")
    letters = orders.having(table=declare(store, "letters", rejecting, orders.clock), policy=rejecting)
    letters.sent("never 1", "ok 2", "ok 3", key="first").receive("one", store=None)
    letters.sent("ok 4", key="second")
    sealed = orders.having(table=declare(store, "sealed", POLICY, orders.clock))
    with suppress(DiedError):
        fault_points.install(_die_before_the_commit)
        sealed.sent("ok 1", "bad 2", "never 3", key="first").receive("died")
    fault_points.install(None)
    shop(orders)


def shop(orders: Queue) -> None:
    """A shop that has asked a warehouse, which has answered: its pass died with the answer in its stage."""
    services = {"shop": Service("Shop", [DEFAULT_CONTRACT]), "warehouse": Service("Warehouse", [DEFAULT_CONTRACT])}
    tables = {name: declare(orders.store, name, ServiceBroker(), orders.clock) for name in services}
    for name, service in services.items():
        declare_services(orders.store, tables[name], [service])
    asked = Dialog(messages=[("DEFAULT", b"is there a wheel?")])
    begin_dialogs(tables["shop"], service="Shop", far_service="Warehouse", contract="DEFAULT", dialogs=[asked], key="ask", clock=orders.clock)
    transmit(orders.store, tables["shop"], orders.clock)
    warehouse = orders.having(table=tables["warehouse"], policy=ServiceBroker(), handler=answer, engine=DyingEngine)
    with suppress(DiedError):
        warehouse.receive("died")


def answer(message: Message) -> None:
    """Answer, and end the dialog."""
    assert message.conversation is not None
    message.conversation.send(b"there is", "DEFAULT")
    message.conversation.end()


def _die_before_the_commit(point: str) -> None:
    if point == "store.finish.before_commit":
        raise DiedError


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as calls:
        main(Path(sys.argv[1]), Path(calls))
