"""ReceiveErrorHandling: what happens to a poison message after its last attempt (spec WCF-21 to WCF-24)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from airflow_poison.core.events import EventType
from airflow_poison.core.policies.counts import moved
from airflow_poison.core.policies.decisions import Counts, Dispose, Disposition, Halt, Halted

if TYPE_CHECKING:
    from datetime import datetime


class ReceiveErrorHandling(StrEnum):
    """The four values of the setting, as the manual writes them."""

    FAULT = "Fault"
    DROP = "Drop"
    REJECT = "Reject"
    MOVE = "Move"


def final_disposition(handling: ReceiveErrorHandling, seen: Counts, faulted: Counts, expires_at: datetime | None, now: datetime) -> Dispose | Halt:
    """Return what ends a message for good; each one raises the poison exception first (spec WCF-18).

    :param seen: the counts that the receive saw.
    :param faulted: the counts of a message that stays because its listener faults.
    """
    match handling:
        case ReceiveErrorHandling.FAULT:
            return Halt(Halted.FAULTED, faulted, (EventType.POISON_EXCEPTION, EventType.FAULTED))
        case ReceiveErrorHandling.DROP:
            expired = expires_at is not None and expires_at <= now
            return Dispose(Disposition.DROP, seen, (EventType.POISON_EXCEPTION, EventType.DROPPED), to_dead_letter=expired)
        case ReceiveErrorHandling.REJECT:
            return Dispose(Disposition.REJECT, seen, (EventType.POISON_EXCEPTION, EventType.REJECTED), to_dead_letter=True)
        case ReceiveErrorHandling.MOVE:
            return Dispose(Disposition.MOVE_TO_POISON, moved(seen), (EventType.POISON_EXCEPTION, EventType.MOVED_POISON))
        case _:
            assert_never(handling)
