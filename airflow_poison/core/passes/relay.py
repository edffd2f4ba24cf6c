"""Relay: send on what a pass left in the outbox, once, and then remove it there.

The final commit of a pass wrote these messages into the queue's own table; sending them is keyed by the outbox file, so a relay that
died between the two steps is finished by the next one without a second copy.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.core.errors import QueueNameError
from airflow_poison.core.message import message_schema
from airflow_poison.core.store.names import MAX_NAME, check_name

if TYPE_CHECKING:
    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.seam import DataFile, QueueStore, QueueTable

DEAD_LETTER_PROPERTY = "dead_letter_queue"
"""The property by which a sender names its own dead-letter queue; without it ``<queue>.dead-letter``."""
_SUFFIX = ".dead-letter"


def relay(store: QueueStore, table: QueueTable, clock: Clock) -> int:
    """Send every outbox message to its queue (made when missing); return how many."""
    sent = 0
    for file in table.snapshot().outbox:
        for target, rows in _by_target(table, file).items():
            control = replace(table.snapshot().control.enabled(), counters={})
            dead_letters = store.create(target, control, clock.now())
            batches = rows.combine_chunks().to_batches()
            sent += dead_letters.append(batches, f"relay:{table.name}:{file.path}:{target}", clock.now()).messages
        table.remove_outbox([file], clock.now())
    return sent


def _by_target(table: QueueTable, file: DataFile) -> dict[str, pa.Table]:
    """Return the file's messages by dead-letter queue, with properties that say where they came from."""
    groups: dict[str, list[dict[str, object]]] = {}
    for row in table.read(file).to_pylist():
        properties = dict(row["properties"] or ())
        target = _target(properties.get(DEAD_LETTER_PROPERTY), table.name)
        properties |= {
            "poison.origin_queue": table.name,
            "poison.origin_lookup_id": str(row["lookup_id"]),
            "poison.reason": row["reason"] or "",
        }
        kept = {name: row[name] for name in message_schema().names} | {"properties": list(properties.items()), "abort_count": 0, "due_at": None}
        groups.setdefault(target, []).append(kept)
    return {target: pa.Table.from_pylist(rows, schema=message_schema()) for target, rows in groups.items()}


def _target(wished: str | None, queue: str) -> str:
    """Return the dead-letter queue that the sender named; the queue's own when that is no name of another queue: no message may stop the relay."""
    if wished and wished != queue:
        with suppress(QueueNameError):
            return check_name(wished)
    return f"{queue[: MAX_NAME - len(_SUFFIX)]}{_SUFFIX}"
