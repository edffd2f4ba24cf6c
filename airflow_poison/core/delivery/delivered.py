"""A batch after its delivery, and which of its messages share an end.

The delivering process only journals; here its words become ends. Messages with the same counts, attempts and state share one decision, so
the cost follows the number of different ends, not of messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_poison.core.delivery.ends import Entry, Journaled, Stay, due_at_of, end_of, name_of
from airflow_poison.core.delivery.sessions.words import State, attempts_of, states_of
from airflow_poison.core.policies.decisions import Block, Counts, Dispose, Halt, Park

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from numpy.typing import NDArray

    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.delivery.sessions.dialogs import Conversed
    from airflow_poison.core.delivery.sessions.session import Decided
    from airflow_poison.core.failures import Failure, FailureKind
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch after its delivery.

    :param batch: columns of ``message_schema()`` and ``move_count``.
    :param words: int32, one per row, as the server session reported them.
    :param failures: the last failure by row, of messages that are not committed.
    :param at: when their fate is decided, UTC.
    :param decided: what an endpoint decided; None: the policy is asked here, with the words.
    :param conversed: what became of conversations; None: the queue has none.
    """

    batch: pa.RecordBatch
    words: NDArray[np.int32]
    failures: Mapping[int, Failure]
    at: datetime
    decided: Decided | None = None
    conversed: Conversed | None = None

    def entry(self, row: int) -> Entry:
        """Return the message of a row with the counts that it came with."""
        cell = {name: self.batch.column(name)[row] for name in ("lookup_id", "abort_count", "move_count", "body", "expires_at")}
        body = cell["body"].as_buffer()
        counts = Counts(cell["abort_count"].as_py() or 0, cell["move_count"].as_py() or 0)
        size = body.size if body is not None else 0
        return Entry(cell["lookup_id"].as_py(), counts, size, cell["expires_at"].as_py(), properties=self.properties(row))

    def properties(self, row: int) -> dict[str, str]:
        """Return the properties of a row's message."""
        return dict(self.batch.column("properties")[row].as_py() or ())


class Fate(NamedTuple):
    """What a decision may depend on; messages that share it share their end."""

    abort_count: int
    move_count: int
    attempts: int
    state: int
    kind: FailureKind | None
    delay: float
    expired: bool
    properties: tuple[tuple[str, str], ...] = ()


class Shared(NamedTuple):
    """An end, and the rows that share it.

    :param kind: of the failure that they ended with.
    """

    end: End
    rows: list[int]
    kind: FailureKind | None


def shared_ends(delivered: Delivered, policy: Policy, opening: Opening) -> Iterator[Shared]:
    """Yield each end of messages that are not committed: as the endpoint decided it, else as the policy says of the words."""
    if delivered.decided is not None:
        yield from _decided(delivered)
        return
    for fate, rows in _fates(delivered, with_properties=policy.reads_properties).items():
        journaled = Journaled(fate.attempts, State(fate.state), delivered.failures.get(rows[0]))
        yield Shared(end_of(policy.open(opening), delivered.entry(rows[0]), journaled, delivered.at), rows, fate.kind)


def _fates(delivered: Delivered, *, with_properties: bool) -> dict[Fate, list[int]]:
    """Return the rows that are not committed, by what their end depends on."""
    states, attempts = states_of(delivered.words), attempts_of(delivered.words)
    fates: dict[Fate, list[int]] = {}
    open_rows = np.flatnonzero(states != State.COMMITTED)
    if not len(open_rows):
        return fates
    rows = delivered.batch.take(pa.array(open_rows, pa.int64()))
    columns = [rows.column(name).to_pylist() for name in ("abort_count", "move_count", "expires_at")]
    for row, abort_count, move_count, expires_at in zip(open_rows.tolist(), *columns, strict=True):
        failure = delivered.failures.get(row)
        fate = Fate(
            abort_count or 0,
            move_count or 0,
            int(attempts[row]),
            int(states[row]),
            failure.kind if failure else None,
            failure.delay.total_seconds() if failure else 0.0,
            expires_at is not None and expires_at <= delivered.at,
            tuple(sorted(delivered.properties(row).items())) if with_properties else (),
        )
        fates.setdefault(fate, []).append(row)
    return fates


def _decided(delivered: Delivered) -> Iterator[Shared]:
    """Yield the ends that an endpoint decided, equal ones together; what it did not receive stays as it came."""
    assert delivered.decided is not None
    kept = delivered.decided.ends
    groups: dict[object, Shared] = {}
    rows = np.flatnonzero(states_of(delivered.words) != State.COMMITTED)
    counts = [delivered.batch.column(name).take(pa.array(rows, pa.int64())).to_pylist() for name in ("abort_count", "move_count")]
    for row, abort_count, move_count in zip(rows.tolist(), *counts, strict=True):
        end = kept.get(row)
        failure = delivered.failures.get(row)
        kind = failure.kind if failure else None
        key = (abort_count, move_count, kind) if end is None else (*_key(end), kind)
        if key not in groups:
            groups[key] = Shared(end or Stay(Counts(abort_count or 0, move_count or 0)), [], kind)
        groups[key].rows.append(row)
    yield from groups.values()


def _key(end: End) -> tuple[object, ...]:
    """Return what makes two ends the same."""
    parts: list[object] = [end.counts, type(end), due_at_of(end), name_of(end)]
    if isinstance(end, Park | Dispose | Block | Halt):
        parts += [end.events, end.place if isinstance(end, Park) else tuple(sorted(end.details.items()))]
    if isinstance(end, Dispose):
        parts += [end.destination, tuple(sorted(end.headers.items())), end.reports]
    return tuple(parts)
