"""Settlement: from a delivered batch to what the stage keeps of it: rows that remain, events, and what was counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from airflow_poison.core.conversations.transaction import is_for_partner
from airflow_poison.core.conversations_as_rows import endpoints_to_table, messages_to_table
from airflow_poison.core.delivery.delivered import shared_ends
from airflow_poison.core.delivery.ends import name_of
from airflow_poison.core.delivery.event_rows import EventRows
from airflow_poison.core.delivery.remaining import fingerprint, remaining, summary
from airflow_poison.core.delivery.sessions.words import State, attempts_of, crashes_of, states_of
from airflow_poison.core.delivery.tally import BlockRecord, HaltRecord, Tally
from airflow_poison.core.failures import FailureKind
from airflow_poison.core.policies.decisions import Block, Dispose, Halt
from airflow_poison.core.policies.opening import FIRST

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.delivery.delivered import Delivered
    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.core.schema import SubQueue


class Settler:
    """Settles the batches of one task.

    :param read_from: the sub-queue that the messages were read from; what is untouched stays there.
    :param record_all: also write the routine events of each delivery (spec 0.3), for audit and tests.
    """

    def __init__(self, policy: Policy, read_from: SubQueue, *, opening: Opening = FIRST, record_all: bool = False) -> None:
        self._policy, self._opening, self._read_from = policy, opening, read_from
        self._events = EventRows(policy, read_from, opening)
        self._record_all = record_all

    def settle(self, delivered: Delivered) -> tuple[list[pa.Table], Tally]:
        """Return the rows that remain (``table_schema()``; committed messages leave none) with events, and what was counted."""
        states = states_of(delivered.words)
        committed, rollbacks = int(np.count_nonzero(states == State.COMMITTED)), int(attempts_of(delivered.words).sum())
        tally = Tally(Counter(received=len(states), committed=committed, rollbacks=rollbacks, deliveries=committed + rollbacks))
        tally.counts["crashes"] = int(crashes_of(delivered.words).sum())
        rows = self._events.routine(delivered) if self._record_all else []
        for end, members, kind in shared_ends(delivered, self._policy, self._opening):
            tally.counts[name_of(end)] += len(members)
            if kind is FailureKind.POSTPONED:
                tally.counts["deliveries"] += len(members)
            for failure, messages in Counter(filter(None, map(delivered.failures.get, members))).items():
                tally.add_error(fingerprint(failure), f"{failure.type}: {failure.text}"[:200], messages)
            self._note_ending(delivered, members[0], end, tally)
            rows += remaining(delivered, members, end, self._read_from)
            rows += self._events.of_end(delivered, members, end)
            tally.counts["reports"] += len(members) * len(end.reports) if isinstance(end, Dispose) else 0
        if delivered.decided is not None and delivered.decided.halt is not None and tally.halt is None:
            tally.halt = _halt_record(delivered.decided.halt, None, "", delivered.at)
        rows += _of_conversations(delivered, tally)
        return rows, tally

    @staticmethod
    def _note_ending(delivered: Delivered, row: int, end: End, tally: Tally) -> None:
        """Note what ends receiving for the whole endpoint."""
        if isinstance(end, Halt):
            lookup_id = delivered.batch.column("lookup_id")[row].as_py()
            tally.halt = _halt_record(end, lookup_id, summary(delivered.failures.get(row)) or "", delivered.at)
        elif isinstance(end, Block) and end.whole_queue:
            until = end.until.isoformat() if end.until else None
            tally.block = BlockRecord(lookup_id=delivered.batch.column("lookup_id")[row].as_py(), until=until)


def _of_conversations(delivered: Delivered, tally: Tally) -> list[pa.Table]:
    """Return the rows of what became of conversations, and count them; they are no messages of the queue."""
    conversed = delivered.conversed
    if conversed is None:
        return []
    tally.counts.update(
        sent=sum(map(is_for_partner, conversed.sent)),
        transmissions=len(conversed.sent),
        conversations=len(conversed.endpoints),
        discarded=conversed.discarded,
        deliveries=conversed.savepoints,
    )
    rows = [endpoints_to_table(conversed.endpoints, delivered.at)] if conversed.endpoints else []
    return rows + ([messages_to_table(conversed.sent, delivered.at)] if conversed.sent else [])


def _halt_record(halt: Halt, lookup_id: int | None, error: str, at: datetime) -> HaltRecord:
    return HaltRecord(
        lookup_id=lookup_id,
        how=halt.how.value,
        error=error,
        at=at.isoformat(),
        abort_count=halt.counts.abort_count,
        move_count=halt.counts.move_count,
        details=dict(halt.details),
    )
