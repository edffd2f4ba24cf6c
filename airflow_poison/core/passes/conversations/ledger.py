"""Ledger: the conversation endpoints of a queue as they are stored, and what has arrived for them and waits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.core.conversations import arrivals
from airflow_poison.core.conversations_as_rows import MESSAGE_COLUMNS, table_to_endpoints, table_to_messages
from airflow_poison.core.errors import ConversationNotFoundError
from airflow_poison.core.message import SubQueue
from airflow_poison.core.store.control import SERVICES_DROPPED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import datetime

    from airflow_poison.core.conversations.endpoint import ConversationEndpoint
    from airflow_poison.core.store.files import DataFile, Snapshot
    from airflow_poison.core.store.queue_table import QueueTable

_VERSIONED = ["conversation_id", "lookup_id", "body"]
ARRIVALS = ["lookup_id", "conversation_id", "group_id", "message_type", "priority"]
"""The columns that arrivals are looked up by."""


def stored(table: QueueTable, snapshot: Snapshot, handles: Collection[str] | None = None) -> dict[str, ConversationEndpoint]:
    """Return endpoints by handle as they are stored; all of them when no handles are given."""
    wanted = None if handles is None else pa.array(sorted(handles), pa.string())
    parts = []
    for file in snapshot.conversations:
        rows = table.read(file, _VERSIONED)
        parts.append(rows if wanted is None else rows.filter(pc.is_in(rows["conversation_id"], wanted)))
    return table_to_endpoints(pa.concat_tables(parts)) if parts else {}


def due(table: QueueTable, snapshot: Snapshot, now: datetime) -> dict[str, ConversationEndpoint]:
    """Return the endpoints whose timer or lifetime has ended; also of dialogs whose first message has arrived and has not been received."""
    handles = set[str]()
    for file in snapshot.conversations:
        if file.min_due_at is not None and file.min_due_at <= now:
            rows = table.read(file, ["conversation_id", "due_at"])
            cells = zip(rows["conversation_id"].to_pylist(), rows["due_at"].to_pylist(), strict=True)
            handles.update(handle for handle, due_at in cells if handle is not None and due_at is not None and due_at <= now)
    found = stored(table, snapshot, handles) if handles else {}
    found |= unreceived(table, snapshot)
    return {handle: endpoint for handle, endpoint in found.items() if endpoint.due_at is not None and endpoint.due_at <= now}


def waiting(table: QueueTable, snapshot: Snapshot, handles: Collection[str] | None = None) -> dict[str, list[str]]:
    """Return the types of the messages of each conversation that are in the queue, claimed or held back ones, and those put aside, too."""
    found: dict[str, list[str]] = {}
    for file in snapshot.files:
        rows = members(table, file)
        for handle, message_type in zip(rows["conversation_id"].to_pylist(), rows["message_type"].to_pylist(), strict=True):
            if handle is not None and (handles is None or handle in handles):
                found.setdefault(handle, []).append(message_type or "")
    return found


def _arrived(table: QueueTable, snapshot: Snapshot, handles: Collection[str] | None = None) -> dict[str, list[str]]:
    """Return the types of what has arrived; what a disabled queue holds back has not (spec SB-22)."""
    return waiting(table, replace(snapshot, files=tuple(file for file in snapshot.files if file.sub_queue != SubQueue.TRANSMISSION)), handles)


def members(table: QueueTable, file: DataFile) -> pa.Table:
    """Return the rows of a file that belong to a conversation, with the columns ``ARRIVALS``."""
    rows = table.read(file, ARRIVALS)
    return rows.filter(pc.is_valid(rows["conversation_id"]))


def begun(table: QueueTable, snapshot: Snapshot, handles: Collection[str]) -> dict[str, ConversationEndpoint]:
    """Return the endpoints of dialogs whose first message waits and has not been received: they are stored when it is.

    A message that was sent on to another queue, a dead letter for example, still says which service it was for: its dialog is not there.
    """
    found: dict[str, ConversationEndpoint] = {}
    wanted, control = pa.array(sorted(handles), pa.string()), snapshot.control
    has_had_others = bool(control.counters.get(SERVICES_DROPPED))
    for file in snapshot.files if handles and _has_had_services(snapshot) else ():
        here = pc.is_in(table.read(file, ["conversation_id"])["conversation_id"], wanted)
        if not pc.any(here).as_py():
            continue
        messages = table_to_messages(table.read(file, list(MESSAGE_COLUMNS)).filter(here))
        endpoints = (arrivals.begun_with(message) for message in messages if message is not None)
        here_are = (endpoint for endpoint in endpoints if endpoint is not None and (has_had_others or endpoint.service in control.services))
        found |= {endpoint.handle: endpoint for endpoint in here_are}
    return found


def unreceived(table: QueueTable, snapshot: Snapshot) -> dict[str, ConversationEndpoint]:
    """Return the endpoints of all dialogs whose first message waits and has not been received."""
    if not _has_had_services(snapshot):
        return {}
    handles = waiting(table, snapshot).keys()
    return begun(table, snapshot, handles - stored(table, snapshot, handles).keys()) if handles else {}


def endpoint(table: QueueTable, snapshot: Snapshot, handle: str, now: datetime | None = None) -> ConversationEndpoint:
    """Return an endpoint with what has arrived for it. Raises ConversationNotFoundError (8426).

    :param now: what the local broker has made by then has arrived, too, though no pass has put it into the queue yet (spec SB-22, SB-43). Nothing
        has while the queue is disabled.
    """
    found = stored(table, snapshot, [handle]).get(handle) or begun(table, snapshot, [handle]).get(handle)
    if found is None:
        raise ConversationNotFoundError(
            f"Error 8426: queue {table.name!r} has no conversation {handle!r}. "
            "A handle is of one side of a dialog: look it up among the conversations of this queue."
        )
    types = _arrived(table, snapshot, {handle}).get(handle, [])
    if now is not None and not snapshot.control.holds_sends:
        types += [message.message_type for message in arrivals.due(found, now)]
    return arrivals.arrived(found, types)


def seen(table: QueueTable, snapshot: Snapshot) -> Iterator[tuple[ConversationEndpoint, Mapping[str, int]]]:
    """Yield every endpoint with what has arrived for it, and how many messages of each type wait."""
    types, known_here = waiting(table, snapshot), stored(table, snapshot)
    there = _arrived(table, snapshot) if snapshot.control.holds_sends else types
    known_here |= begun(table, snapshot, types.keys() - known_here.keys())
    for handle, known in sorted(known_here.items()):
        here = types.get(handle, [])
        yield arrivals.arrived(known, there.get(handle, ())), {name: here.count(name) for name in sorted(set(here))}


def _has_had_services(snapshot: Snapshot) -> bool:
    """Whether dialogs begin in this queue, or have begun; a queue of plain messages need not be read to see that none does."""
    return bool(snapshot.control.services or snapshot.control.counters.get(SERVICES_DROPPED))
