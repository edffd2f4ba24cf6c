"""Remove: take one message out of a queue by its lookup id (spec WCF-25)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.core.errors import MessageClaimedError, MessageNotFoundError
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.message import Message

if TYPE_CHECKING:
    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.seam import DataFile, QueueTable, Snapshot

BY_HAND = "hand"
"""What the event of a message that people removed says in ``by``."""


def remove(table: QueueTable, lookup_id: int, clock: Clock) -> Message:
    """Take a message out of whichever sub-queue it is in, in one commit, and return it. Its neighbours stay as they are.

    Raises MessageNotFoundError, and MessageClaimedError while a pass has the message.
    """
    snapshot = table.snapshot()
    file = _holder(table, snapshot, lookup_id)
    if file.path in {held.path for claim in snapshot.claims for held in claim.files}:
        raise MessageClaimedError(f"Message {lookup_id} of queue {table.name!r} is being received. Try again when that pass has ended.")
    rows = table.read(file)
    found = _with_id(rows, lookup_id)
    out = rows.filter(found).combine_chunks().to_batches()[0]
    message = Message.view(Message.columns(out), 0, out.column("abort_count")[0].as_py() or 0, file.move_count)
    event = Event(EventType.DROPPED, clock.now(), lookup_id, message.abort_count, message.move_count, {"place": "", "by": BY_HAND})
    table.replace_file(file, rows.filter(pc.invert(found)), [event], clock.now())
    return message


def _holder(table: QueueTable, snapshot: Snapshot, lookup_id: int) -> DataFile:
    for file in snapshot.files:
        if file.min_lookup_id <= lookup_id <= file.max_lookup_id and pc.any(_with_id(table.read(file), lookup_id)).as_py():
            return file
    raise MessageNotFoundError(f"Message {lookup_id} is not in queue {table.name!r}: it was settled or removed, or never sent.")


def _with_id(rows: pa.Table, lookup_id: int) -> pa.BooleanArray:
    return pc.is_in(rows.column("lookup_id"), pa.array([lookup_id], pa.int64()))
