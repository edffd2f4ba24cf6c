"""What both sides of the demo have: the shop's orders, the warehouse's stock, and their queues with the endpoints of all dialogs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_poison.fsck.check import check
from airflow_poison.passes.conversations import conversations
from airflow_poison.store import open_store
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueueNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.passes.conversations import ConversationRow
    from airflow_poison.store.files import Snapshot

SHOP, WAREHOUSE = "parts_orders", "parts_warehouse"


@dataclass(frozen=True, slots=True)
class Order:
    """A customer's order, as the shop has it."""

    number: int
    part: str
    pieces: int
    conversation: str | None
    state: str
    note: str

    @property
    def text(self) -> str:
        """What was ordered."""
        return f"{self.pieces} x {self.part}"


class Sides:
    """Reads both sides; changes nothing.

    :param store: root of the store. :param parts: the folder of the databases.
    """

    def __init__(self, store: Path, parts: Path) -> None:
        self._store, self._parts = store, parts

    def orders(self) -> list[Order]:
        """Return the shop's orders."""
        return [
            Order(*row) for row in self._rows("customers", "SELECT number, part, pieces, conversation, state, note FROM customer_order ORDER BY 1")
        ]

    def stock(self) -> dict[str, int]:
        """Return the pieces of each part."""
        return dict(self._rows("stock", "SELECT part, pieces FROM stock"))

    def shipments(self) -> list[tuple[str, str, int]]:
        """Return conversation (the handle at the warehouse), part and pieces of what was shipped."""
        return self._rows("stock", "SELECT conversation, part, pieces FROM shipment")

    def alerts(self) -> list[dict[str, Any]]:
        """Return what people were told, oldest first."""
        file = self._parts / "alerts.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def queue(self, name: str) -> Snapshot | None:
        """Return what a queue is like now; None: it is not there yet."""
        if not (self._store / name).exists():
            return None
        try:
            return open_store(str(self._store)).open(name).snapshot()
        except QueueNotFoundError:
            return None

    def is_off(self) -> bool:
        """Whether the warehouse's queue is disabled."""
        snapshot = self.queue(WAREHOUSE)
        return snapshot is not None and snapshot.control.state is QueueState.DISABLED

    def on_their_way(self, name: str) -> int:
        """Return how many messages a side holds for its partner."""
        snapshot = self.queue(name)
        return 0 if snapshot is None else sum(file.rows for file in snapshot.transmissions)

    def left(self, name: str) -> int:
        """Return how many messages are anywhere in a queue, or leave it."""
        snapshot = self.queue(name)
        return 0 if snapshot is None else sum(file.rows for file in snapshot.files) + self.on_their_way(name)

    def endpoints(self, name: str) -> dict[str, ConversationRow]:
        """Return a side's endpoints by the id that both sides of a dialog share."""
        return {row.conversation_id: row for row in conversations(open_store(str(self._store)).open(name), ended=True)}

    def findings(self) -> Iterator[str]:
        """Yield what the check of the two queues finds; others may lie in the same store."""
        store = open_store(str(self._store))
        for name in (SHOP, WAREHOUSE):
            yield from (f"the check of queue {name}: {finding.what}" for finding in check(store.open(name), SystemClock()).findings)

    def _rows(self, name: str, query: str) -> list[Any]:
        file = self._parts / f"{name}.sqlite"
        if not file.exists():
            return []
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise
