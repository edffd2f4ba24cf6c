"""What the tests of commands on queues begin with: options, and ways to read what was answered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_poison.store.delta_store import DeltaStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable
    from tests.given.command import Ran

TAKE = "--handler tests.unit.cli.shop:take --engine local --isolation none"
MOVE = "--system Msmq4 --set ReceiveErrorHandling=Move ReceiveRetryCount=0 MaxRetryCycles=0"
FAULT = "--system Msmq4 --set ReceiveRetryCount=0 MaxRetryCycles=0"


def orders() -> QueueTable:
    return DeltaStore("q", durable=False).open("orders")


def answer(ran: Ran) -> Any:
    return json.loads(ran.out)


def messages(poison: Callable[..., Ran], queue: str = "orders") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer(poison(f"show {queue} --body --limit 100 -o json"))["messages"]
    return sorted(found, key=lambda message: message["lookup_id"])
