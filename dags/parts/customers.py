"""The shop: its customers' orders, and the handler that notes what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parts import SHIPPED, database

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from sqlite3 import Connection

    from airflow_poison import Message

TABLES = """
CREATE TABLE IF NOT EXISTS customer_order (
    number INTEGER PRIMARY KEY, part TEXT NOT NULL, pieces INTEGER NOT NULL,
    conversation TEXT UNIQUE, state TEXT NOT NULL DEFAULT 'new', note TEXT NOT NULL DEFAULT ''
);
"""


def note_reply(message: Message) -> None:
    """Note what the warehouse says about an order: the handler of the shop. Noting it once more changes nothing."""
    conversation = message.conversation
    assert conversation is not None, "the shop receives from dialogs only"
    if message.message_type == SHIPPED:
        _note(conversation.handle, "shipped")
    if message.error is not None:
        _note(conversation.handle, "refused", f"{message.error.description} ({message.error.code})")
    if message.is_error or message.is_end_dialog:  # the warehouse has ended the dialog: so does the shop
        conversation.end()


def orders() -> AbstractContextManager[Connection]:
    """Open the shop's table for one transaction."""
    return database("customers", TABLES)


def take(given: Iterable[tuple[int, str, int]]) -> None:
    """Take orders: number, part and pieces of each. An order that is there already stays as it is."""
    with orders() as table:
        table.executemany("INSERT OR IGNORE INTO customer_order (number, part, pieces) VALUES (?, ?, ?)", given)


def new() -> list[tuple[int, str, int]]:
    """Return the orders that the warehouse has not been sent, or of which we do not know."""
    with orders() as table:
        return table.execute("SELECT number, part, pieces FROM customer_order WHERE state = 'new' ORDER BY number").fetchall()


def sent(number: int, conversation: str) -> None:
    """Note the dialog that is about an order."""
    with orders() as table:
        table.execute("UPDATE customer_order SET conversation = ?, state = 'sent' WHERE number = ? AND state = 'new'", (conversation, number))


def _note(conversation: str, state: str, note: str = "") -> None:
    with orders() as table:
        table.execute("UPDATE customer_order SET state = ?, note = ? WHERE conversation = ?", (state, note, conversation))
