"""Hand a PoisonMessageError over to an error handler for each message that was found poison (spec WCF-18, WCF-26), after the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.errors import PoisonMessageError
from airflow_poison.core.events import EventType
from airflow_poison.core.passes.subscription import Subscription

if TYPE_CHECKING:
    from airflow_poison.core.clock import Clock
    from airflow_poison.core.error_handler import ErrorHandler
    from airflow_poison.core.store.queue_table import QueueTable


def error_subscription(table: QueueTable, subscriber: str, clock: Clock) -> Subscription:
    """Return the subscription behind an error handler."""
    return Subscription(table, f"error:{subscriber}", frozenset({EventType.POISON_EXCEPTION}), clock)


def hand_over(table: QueueTable, subscriber: str, handler: ErrorHandler, clock: Clock) -> int:
    """Call the error handler once for each poison exception that is recorded since the last time; return how many it dealt with.

    At least once: after a crash, or when the handler itself raises, the same ones are handed over again.
    """
    dealt = 0
    with error_subscription(table, subscriber, clock).range() as told:
        for event in told.events:
            dealt += handler.handle_error(PoisonMessageError(event.lookup_id or 0, table.name))
    return dealt
