"""The events that delivered messages leave in the table: those of their ends and, where all are recorded, those of every delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import numpy as np
import pyarrow as pa

from airflow_poison.core.delivery.ends import HALT_EVENTS, partition_of
from airflow_poison.core.delivery.sessions.words import State, attempts_of, states_of
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Block, Deliver, Dispose, Halt, Park
from airflow_poison.core.schema import events_to_table, table_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from airflow_poison.core.delivery.delivered import Delivered
    from airflow_poison.core.delivery.ends import End, Entry
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.core.schema import SubQueue

_BLANK = Failure(FailureKind.EXCEPTION)


class EventRows:
    """Makes rows of the ``_event`` partition, numbered in the order in which they are asked for."""

    def __init__(self, policy: Policy, read_from: SubQueue, opening: Opening) -> None:
        self._policy, self._read_from, self._opening = policy, read_from, opening
        self._written = 0

    def of_end(self, delivered: Delivered, members: Sequence[int], end: End) -> list[pa.Table]:
        """Return the decision's events, one row for each message; those of the endpoint itself are the final commit's to tell."""
        if not isinstance(end, Park | Dispose | Block | Halt):
            return []
        details = _facts(end) | {"place": self._place(end)}
        ids = delivered.batch.column("lookup_id").take(pa.array(members, pa.int64())).cast(pa.int64())
        tables = []
        for kind in end.events:
            if kind in HALT_EVENTS.values():
                continue
            one = events_to_table([Event(kind, delivered.at, None, end.counts.abort_count, end.counts.move_count, details)])
            many = one.take(pa.array([0] * len(members), pa.int64()))
            numbers = pa.array(np.arange(self._written, self._written + len(members)), pa.int32())
            self._written += len(members)
            for name, column in (("lookup_id", ids), ("priority", numbers)):
                many = many.set_column(many.schema.get_field_index(name), table_schema().field(name), column)
            tables.append(many)
        return tables

    def _place(self, end: Park | Dispose | Block | Halt) -> str:
        if isinstance(end, Park):
            return end.place
        if isinstance(end, Dispose) and end.destination:
            return end.destination
        return partition_of(end, self._read_from) or ""

    def routine(self, delivered: Delivered) -> list[pa.Table]:
        """Return the routine events: as the endpoint told them, or as the words say."""
        if delivered.decided is None:
            return [self._from_words(delivered)]
        events = delivered.decided.events
        self._written += len(events)
        return [events_to_table(events, self._written - len(events))]

    def _from_words(self, delivered: Delivered) -> pa.Table:
        """Return DELIVERED, COMMITTED and ROLLED_BACK of each message, in the order in which they happened to it."""
        states, attempts = states_of(delivered.words), attempts_of(delivered.words)
        events = [event for row in range(len(states)) for event in self._routine_of(delivered, row, State(states[row]), int(attempts[row]))]
        self._written += len(events)
        return events_to_table(events, self._written - len(events))

    def _routine_of(self, delivered: Delivered, row: int, state: State, attempts: int) -> Iterator[Event]:
        """Yield the routine events of one message; what its handler gave back was delivered, too."""
        entry, receiver, last = delivered.entry(row), self._policy.open(self._opening), delivered.failures.get(row)
        given_back = last is not None and last.kind is FailureKind.POSTPONED
        for number in range(1, attempts + 1 + (state is State.COMMITTED or given_back)):
            decision = receiver.before(entry, delivered.at)
            entry.counts = decision.counts
            at_most_once = isinstance(decision, Deliver) and decision.at_most_once
            if at_most_once:
                yield _event(EventType.COMMITTED, entry, delivered.at)
            yield _event(EventType.DELIVERED, entry, delivered.at)
            if number <= attempts:
                failure = last if last is not None and number == attempts and not given_back else _BLANK
                entry.counts = receiver.after_rollback(entry, failure, delivered.at).counts
                yield _event(EventType.ROLLED_BACK, entry, delivered.at)
            elif state is State.COMMITTED and not at_most_once:
                yield _event(EventType.COMMITTED, entry, delivered.at)


def _facts(end: Park | Dispose | Block | Halt) -> dict[str, str]:
    """Return what a decision's events say of it: its details, the properties that the message gets, until when it is blocked."""
    match end:
        case Park():
            return {}
        case Dispose():
            return {**end.headers, **end.details}
        case Block():
            until = end.until.isoformat() if end.until else "restart"
            return {"until": until, "blocks": "queue" if end.whole_queue else "message", **end.details}
        case Halt():
            return dict(end.details)
        case _:
            assert_never(end)


def _event(kind: EventType, entry: Entry, at: datetime) -> Event:
    return Event(kind, at, entry.lookup_id, entry.counts.abort_count, entry.counts.move_count)
