"""The warehouse: its stock, and the handler that ships what is ordered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parts import ORDER, database

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from sqlite3 import Connection

    from airflow_poison import Message

STOCK = {"bolt": 500, "gear": 40, "shaft": 12, "valve": 30}
MOST_PIECES = 100
TOO_MANY = 1
TABLES = """
CREATE TABLE IF NOT EXISTS stock (part TEXT PRIMARY KEY, pieces INTEGER NOT NULL CHECK (pieces >= 0), withdrawn INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS shipment (conversation TEXT PRIMARY KEY, part TEXT NOT NULL REFERENCES stock, pieces INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS withdrawn BEFORE UPDATE OF pieces ON stock WHEN old.withdrawn
BEGIN SELECT raise(ABORT, 'this part was withdrawn from stock'); END;
"""


def ship(message: Message) -> None:
    """Ship what a message orders: the handler of the warehouse. Raising rolls back: the order, the reply and the end of the dialog."""
    conversation = message.conversation
    assert conversation is not None, "the warehouse receives from dialogs only"
    if message.message_type != ORDER:  # EndDialog or Error: the shop has ended it
        conversation.end()
        return
    order = message.json()
    if order["pieces"] > MOST_PIECES:  # not poison, but a request that cannot be met: its reader says so, and it is done
        conversation.end(error=TOO_MANY, description=f"We ship at most {MOST_PIECES} pieces of a part.")
        return
    with stock() as tables:
        first = tables.execute("INSERT OR IGNORE INTO shipment VALUES (?, ?, ?)", (conversation.handle, order["part"], order["pieces"])).rowcount
        if first:  # else a delivery before this one has shipped, and was killed before the queue knew
            tables.execute("UPDATE stock SET pieces = pieces - :pieces WHERE part = :part", order)
    conversation.reply(order)
    conversation.end()


def stock() -> AbstractContextManager[Connection]:
    """Open the warehouse's tables for one transaction."""
    return database("stock", TABLES)


def fill() -> None:
    """Put parts in stock that are not there yet."""
    with stock() as tables:
        tables.executemany("INSERT OR IGNORE INTO stock (part, pieces) VALUES (?, ?)", STOCK.items())


def withdraw(part: str) -> None:
    """Withdraw a part: nobody can take pieces of it any more. Orders for it that are on their way become poison."""
    with stock() as tables:
        tables.execute("UPDATE stock SET withdrawn = 1 WHERE part = ?", (part,))
