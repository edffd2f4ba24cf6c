"""The parts of a factory: a shop that takes customers' orders, a warehouse that ships them, and what the two say to each other.

An order is a dialog. The shop begins it with an Order; the warehouse answers Shipped and ends it, or ends it with an error. The broker checks what
they say: bodies are JSON that fits a schema, and each side sends only what the contract lets it send.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison import Contract, MessageType, Service, ServiceBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDER, SHIPPED = "//Parts/Order", "//Parts/Shipped"
_PIECES = {
    "type": "object",
    "required": ["part", "pieces"],
    "properties": {"part": {"type": "string"}, "pieces": {"type": "integer", "minimum": 1}},
}
CONTRACT = Contract(
    "//Parts/OrderPart", {ORDER: "INITIATOR", SHIPPED: "TARGET"}, [MessageType(ORDER, schema=_PIECES), MessageType(SHIPPED, schema=_PIECES)]
)
SHOP, WAREHOUSE = Service("//Parts/Shop", [CONTRACT]), Service("//Parts/Warehouse", [CONTRACT])
SHOP_QUEUE, WAREHOUSE_QUEUE = "parts_orders", "parts_warehouse"
POLICY = ServiceBroker()


def home() -> Path:
    """Return the folder of the two databases and of the alerts: PARTS_HOME, or ``parts`` in AIRFLOW_HOME."""
    return Path(os.environ.get("PARTS_HOME") or Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "parts")


@contextmanager
def database(name: str, tables: str) -> Iterator[sqlite3.Connection]:
    """Open a database for one transaction: what raises is rolled back.

    :param tables: the statements that make its tables.
    """
    home().mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(home() / f"{name}.sqlite", timeout=60)) as connection:
        connection.executescript(f"PRAGMA foreign_keys = ON; {tables}")
        with connection:
            yield connection
