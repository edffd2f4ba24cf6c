"""At hand: what a receive pass gives to its tasks of the conversations whose messages it has claimed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_poison.core.conversations.at_hand import AtHand
from airflow_poison.core.conversations.precedence import Waiting, exceptions
from airflow_poison.core.passes.conversations import ledger
from airflow_poison.core.passes.conversations.services import services_of
from airflow_poison.core.store.control import SERVICES_DROPPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.core.store.files import Claim, Snapshot
    from airflow_poison.core.store.queue_table import QueueTable


def at_hand(table: QueueTable, claim: Claim) -> AtHand:
    """Return services, endpoints, what waits in their conversations, and which claimed messages are received before their place."""
    snapshot = table.snapshot()
    claimed = list(_claimed(table, claim))
    handles = {row.handle for row in claimed if row.handle is not None}
    waiting = ledger.waiting(table, snapshot, handles)
    stored, overtaking = ledger.stored(table, snapshot, handles), exceptions(claimed)
    overtaken = {row.handle for row in claimed if row.handle is not None and row.lookup_id in overtaking}
    here = Counter(row.handle for row in claimed)
    elsewhere = {handle for handle, types in waiting.items() if len(types) > here[handle]}  # the first message, perhaps
    return AtHand(
        services=services_of(snapshot.control),
        endpoints=stored,
        waiting={handle: tuple(types) for handle, types in waiting.items()},
        exceptions=overtaking,
        begun=ledger.begun(table, snapshot, (overtaken | elsewhere) - stored.keys()),
    )


def _claimed(table: QueueTable, claim: Claim) -> Iterator[Waiting]:
    for file in claim.files:
        rows = ledger.members(table, file)
        for cells in zip(*(rows[name].to_pylist() for name in ledger.ARRIVALS), strict=True):
            lookup_id, handle, group, message_type, priority = cells
            yield Waiting(lookup_id, handle, group or handle, message_type or "", priority)


def has_conversations(snapshot: Snapshot) -> bool:
    """Whether a queue has conversations, or has had a service whose dialogs may still bring messages."""
    control = snapshot.control
    return bool(control.services or control.counters.get(SERVICES_DROPPED) or snapshot.conversations or snapshot.transmissions)
