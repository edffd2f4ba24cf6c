"""Append: a stream of batches becomes files with the queue's next lookup ids, in one commit, once per key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.errors import StoreUnreachableError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.schema import SubQueue
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.results import Sent
from airflow_poison.core.store.table import sequence
from airflow_poison.core.store.table.base import patience
from airflow_poison.core.store.table.fairness import turn
from airflow_poison.core.store.table.incoming import Incoming
from airflow_poison.core.store.table.layout import SEND_LOCK

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.store.log import State
    from airflow_poison.core.store.table.base import Table


def append(table: Table, batches: Iterable[pa.RecordBatch], key: str, now: datetime) -> Sent:
    """Add messages to ``main``, or to ``transmission`` while the queue is disabled: the commit decides, whatever the state was before.

    The files are written before the turn is taken: then nobody waits for a slow source of batches.
    """
    state = table.log.load()
    if (done := _sent_before(table, state, key)) is not None:
        return done
    incoming = Incoming(table.root, base=sequence.last_id(state))
    del state  # the next look goes on from it
    reach("store.append.before_files")
    try:
        incoming.write(batches, now)
    except BaseException as error:
        incoming.discard()
        if isinstance(error, OSError) and table.root in str(error):  # others are those of the source of the batches
            raise StoreUnreachableError(_unwritable(table.root, error)) from error
        raise
    reach("store.append.after_files")
    with turn(f"{table.root}/{SEND_LOCK}"):
        sent = _commit(table, incoming, key)  # files stay when this raises: the commit may have happened
    if sent.repeated:
        incoming.discard()
    return sent


def _unwritable(root: str, error: OSError) -> str:
    return f"The queue table {root} cannot be written: {error}. Check free space and the rights of this user there; nothing was sent."


def _commit(table: Table, incoming: Incoming, key: str) -> Sent:
    for _ in patience(table.root):
        state = table.log.load()
        if (done := _sent_before(table, state, key)) is not None:
            return done
        base, holds = sequence.last_id(state), table.control(state).holds_sends
        incoming.put_into(SubQueue.TRANSMISSION if holds else SubQueue.MAIN)
        incoming.renumber(base)
        reach("store.append.after_numbering")
        first, last, held = base + 1, base + incoming.messages, incoming.messages if holds else 0
        numbers = {f"send:{key}": incoming.messages, f"first:{key}": first} | ({f"held:{key}": held} if held else {})
        commit = Commit("append", add=incoming.files, numbers=numbers, lasting={sequence.SEQUENCE: last}, details={"key": key})
        if table.log.commit(state, commit):
            return Sent(messages=incoming.messages, first_lookup_id=first, held=held)
    raise AssertionError  # pragma: no cover  (patience raises)


def _sent_before(table: Table, state: State, key: str) -> Sent | None:
    """Return what an earlier send with this key did; it is durable then, whatever became of its process."""
    messages = state.number(f"send:{key}")
    if messages is None:
        return None
    table.log.confirm(state)
    first, held = state.number(f"first:{key}") or 0, state.number(f"held:{key}") or 0
    return Sent(messages=messages, first_lookup_id=first, repeated=True, held=held)
