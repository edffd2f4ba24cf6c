"""Conversation endpoints and dialog messages as plain rows: the store knows nothing of what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.store.files import Transaction
from airflow_poison.values.schema import CONVERSATION, TRANSMISSION_QUEUE, table_schema
from tests.given.tables import NOW

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.queue_table import QueueTable

Cells = dict[str, Any]


def endpoint(handle: str, version: int, state: str = "CO", at: datetime | None = None) -> Cells:
    """A version of a conversation endpoint."""
    cells = {"conversation_id": handle, "lookup_id": version, "message_type": state, "enqueued_at": at, "body": f"{handle} {version}".encode()}
    return cells | {"sub_queue": CONVERSATION, "move_count": 0}


def letter(body: str, to: str = "partner") -> Cells:
    """A message to the partner."""
    return {"conversation_id": to, "message_type": "m", "body": body.encode(), "priority": 5, "sub_queue": TRANSMISSION_QUEUE, "move_count": 0}


def rows(*cells: Cells) -> pa.Table:
    return pa.Table.from_pylist(list(cells), schema=table_schema())


def always(*cells: Cells, **parts: Any) -> Callable[[Snapshot], Transaction]:
    """A plan that does the same, whatever it is shown."""
    return lambda _: Transaction(rows(*cells), **parts)


def act(queue: QueueTable, key: str, *cells: Cells, **parts: Any) -> bool:
    return queue.transact(always(*cells, **parts), key, NOW)


def next_version(queue: QueueTable, handle: str = "a") -> Callable[[Snapshot], Transaction]:
    """A plan that raises the version of an endpoint by one, and tells the partner which one it is."""

    def plan(snapshot: Snapshot) -> Transaction:
        version = _newest(queue, snapshot.conversations).get(handle, 0) + 1
        return Transaction(rows(endpoint(handle, version), letter(f"{handle} {version}")))

    return plan


def endpoints(queue: QueueTable) -> dict[str, int]:
    """The version of each endpoint that counts."""
    return _newest(queue, queue.snapshot().conversations)


def _newest(queue: QueueTable, files: tuple[DataFile, ...]) -> dict[str, int]:
    found = [row for file in files for row in queue.read(file).select(["conversation_id", "lookup_id"]).to_pylist()]
    return {row["conversation_id"]: row["lookup_id"] for row in sorted(found, key=lambda row: row["lookup_id"])}


def letters(queue: QueueTable) -> list[str]:
    """The messages to partners, in the order in which they are to be sent."""
    return [body.decode() for file in queue.snapshot().transmissions for body in queue.read(file)["body"].to_pylist() if body is not None]
