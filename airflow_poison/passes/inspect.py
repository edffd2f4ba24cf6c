"""Inspect: look at messages without changing anything (spec SB-27 to SB-29, SB-33)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.delivery.stage import halt_record
from airflow_poison.dialogs.acts import Envelope
from airflow_poison.dialogs.transaction import WaitingMessages
from airflow_poison.passes.browse import MessageRow, first_rows, masked, recorded_mask
from airflow_poison.passes.halts import halt_event, halted_row
from airflow_poison.passes.messages import EVERYWHERE, Chosen, find
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.decisions import Halt
from airflow_poison.rules.policy import Opening
from airflow_poison.rules.queue_disabling import WAIT, Inspection
from airflow_poison.rules.settings import choice
from airflow_poison.store.control import Control, QueueState
from airflow_poison.values.errors import QueueHaltedError, SettingError
from airflow_poison.values.schema import SubQueue, table_schema
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store.files import Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock
    from airflow_poison.values.events import Event

MOST_MESSAGES = 100
"""How many messages of a conversation an inspection shows."""
BY_INSPECTION = "inspection"
"""What the event of a queue that an inspection disabled says in ``by``."""
_ROLLED_BACK = "an inspection rolled it back, as the receives before did"
_POLL_SECONDS = 0.05
_PLACES = list(SubQueue)


@dataclass(frozen=True, slots=True)
class InspectResult(Plain):
    """What an inspection saw.

    :param mode: how it read: ``browse``, ``exempt`` or ``strict``.
    :param state: the state of the queue's endpoint afterwards: a strict inspection may have disabled it.
    :param messages: in the order in which they would be received; none: no message was available.
    """

    queue: str
    mode: str
    state: str
    messages: tuple[MessageRow, ...] = ()
    more: int = 0


def inspect(
    table: QueueTable,
    clock: Clock,
    *,
    lookup_id: int | None = None,
    conversation_id: str | None = None,
    mode: Inspection | str | None = None,
    every: bool = False,
    wait: timedelta = WAIT,
    pause: Callable[[float], None] = time.sleep,
    unmask: bool = False,
) -> InspectResult:
    """Look at a message, at a conversation's next one, or, without either, at the suspect: what halted an endpoint, else the head of ``main``.

    ``browse`` reads every sub-queue, whatever the queue's state, and also claimed messages. ``exempt`` and ``strict`` see what a receive
    would get: they need an enabled queue, look into ``main`` alone, and wait while a pass has the message, or while there is none. What a strict
    one has seen counts as one rollback, which may disable the queue (spec SB-33); a pass that runs writes its own count over it when it ends.

    :param mode: None: as the queue's settings say (Service Broker's ``inspection``), else ``browse``.
    :param every: all messages of the conversation, at most 100, instead of the one that a receive gets (spec section 10, Q-8).
    :param wait: how long a receiving inspection waits (spec SB-29).
    :param pause: waits so many seconds.
    :param unmask: with the values that the queue hides.
    Raises QueueHaltedError, with error 9617, for a receiving inspection of a halted queue, and SettingError.
    """
    if lookup_id is not None and conversation_id is not None:
        raise SettingError("conversation_id", conversation_id, "not together with lookup_id")
    how = _mode(table.snapshot().control, mode)
    numbers = None if lookup_id is None else Chosen.ids([lookup_id]).lookup_ids
    chosen = None if numbers is None and conversation_id is None else Chosen(numbers, conversation_id)
    until = clock.now() + wait
    seen = _available(table, chosen, how)
    while how.receives and not seen.num_rows and clock.now() < until:
        pause(_POLL_SECONDS)
        seen = _available(table, chosen, how)
    shown = seen.slice(0, MOST_MESSAGES if every else 1)
    state = _rolled_back(table, shown, clock.now()) if how is Inspection.STRICT and shown.num_rows else table.snapshot().control.state
    masking = None if unmask else recorded_mask(table)
    messages = tuple(masked(row, masking) for row in MessageRow.of(shown))
    return InspectResult(table.name, how.value, state.value, messages, seen.num_rows - shown.num_rows)


def _mode(control: Control, mode: Inspection | str | None) -> Inspection:
    configured = control.policy.get("inspection")
    how = choice("mode", mode if mode is not None else configured or Inspection.BROWSE, Inspection)
    if how is Inspection.STRICT and configured is None:
        raise SettingError("mode", how.value, "browse or exempt: only Service Broker counts inspections")
    return how


# What there is to see -------------------------------------------------------------------------------------------------


def _available(table: QueueTable, chosen: Chosen | None, how: Inspection) -> pa.Table:
    """Return the chosen messages, or the suspect, as far as this kind of inspection sees them, in receive order. Raises QueueHaltedError."""
    snapshot = table.snapshot()
    if how.receives:
        _refuse_halted(table.name, snapshot.control)
    hidden = snapshot.claimed_paths if how.receives else set[str]()
    places = frozenset({SubQueue.MAIN}) if how.receives else EVERYWHERE
    if chosen is not None:
        return _rows(table, snapshot, chosen, places, hidden)
    suspect = snapshot.control.halted_by
    rows = None if suspect is None else _rows(table, snapshot, Chosen((suspect,)), places, hidden)
    return rows if rows is not None and rows.num_rows else _first(table, snapshot, hidden)


def _refuse_halted(queue: str, control: Control) -> None:
    if control.state is not QueueState.ENABLED:
        raise QueueHaltedError(
            f"Error 9617: queue {queue!r} is currently {control.state.value} ({control.reason}), so an inspection can receive nothing from it. "
            "Look at its messages with mode='browse', which needs no enabled queue."
        )


def _rows(table: QueueTable, snapshot: Snapshot, chosen: Chosen, places: Collection[SubQueue], hidden: set[str]) -> pa.Table:
    holders = (holder for holder in find(table, snapshot, chosen, places) if holder.file.path not in hidden)
    rows = [table.select(holder.file, holder.lookup_ids) for holder in holders]
    return _in_receive_order(pa.concat_tables(rows)) if rows else table_schema().empty_table()


def _in_receive_order(rows: pa.Table) -> pa.Table:
    """Sort messages of one conversation by sub-queue, ``main`` first, then as a receive would take them (spec SB-41)."""
    places = pa.array([_PLACES.index(SubQueue(place)) for place in rows["sub_queue"].to_pylist() if place is not None], pa.int32())
    cells = zip(*(rows[name].to_pylist() for name in ("lookup_id", "conversation_id", "group_id", "message_type")), strict=True)
    precedence = pa.array([WaitingMessages(*cell).precedence for cell in cells], pa.int32())
    placed = rows.append_column("place", places).append_column("precedence", precedence)
    ordered = placed.sort_by([("place", "ascending"), ("priority", "descending"), ("precedence", "ascending"), ("lookup_id", "ascending")])
    return ordered.drop_columns(["place", "precedence"])


def _first(table: QueueTable, snapshot: Snapshot, hidden: set[str]) -> pa.Table:
    """Return the message that would be received first; an empty table when there is none."""
    files = [file for file in snapshot.files if file.sub_queue == SubQueue.MAIN and file.path not in hidden]
    head = first_rows(table, files, 1, bodies=True)
    conversation = head["conversation_id"][0].as_py() if head.num_rows else None
    if conversation is None:
        return head
    return _rows(table, snapshot, Chosen(conversation_id=conversation), {SubQueue.MAIN}, hidden).slice(0, 1)


# What a strict one counts ---------------------------------------------------------------------------------------------


def _rolled_back(table: QueueTable, shown: pa.Table, now: datetime) -> QueueState:
    """Count one rollback of a receiving transaction, whatever the number of its messages, and disable the queue at the limit, in one commit."""
    entry = next(MessageRow.of(shown))
    events: list[Event] = []
    envelope = Envelope.of(entry.properties) if table.snapshot().has_conversations else None

    def change(control: Control) -> Control:
        _refuse_halted(table.name, control)
        policy = policy_from_dict(control.policy)
        receiver = policy.open(Opening(table.name, control.endpoint_counters))
        decision = Inspection.STRICT.give_back(receiver, entry, now)
        after = control.with_endpoint_counters(receiver.counters())
        events[:] = []
        if not isinstance(decision, Halt):
            return after
        halt = halt_record(decision, entry.lookup_id, _ROLLED_BACK, now, envelope)
        halt["details"]["by"] = BY_INSPECTION
        events[:] = [halt_event(halt, table.name, policy.system)]
        return halted_row(after, SubQueue.MAIN, halt, table.name)

    return table.alter(change, lambda _before, _after: tuple(events)).state
