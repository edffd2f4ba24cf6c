"""What the demo reads from the queue's table while it works and afterwards, without a JVM."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_poison.core.errors import QueueNotFoundError
from airflow_poison.core.schema import SubQueue
from airflow_poison.core.store import open_store
from airflow_poison.core.store.table.stage import stage_folder
from tools.demo.account import Depth

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from airflow_poison.core.store.files import Claim

QUEUE = "flights"
FLIGHT = ("carrier", "flight", "origin", "time_hour")
"""The columns of an output that say which flight a row is of."""


@dataclass(frozen=True, slots=True)
class Working:
    """How far the running pass is, as its attempt journals and the rows of its transformation say."""

    messages: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """The queue at one moment."""

    depth: Depth = field(default_factory=Depth)
    next_due: datetime | None = None
    working: Working = field(default_factory=Working)


class Queue:
    """The demo's queue, read only.

    :param store: root of the store.
    """

    def __init__(self, store: Path) -> None:
        self.root = store / QUEUE
        self._store = store

    def reading(self) -> Reading | None:
        """Return what waits now; None while there is no queue."""
        if not self.root.exists():
            return None
        try:
            snapshot = open_store(str(self._store)).open(QUEUE).snapshot()
        except QueueNotFoundError:
            return None
        now = datetime.now(UTC)
        main, retry, poison = (snapshot.depth(name, now) for name in (SubQueue.MAIN, SubQueue.RETRY, SubQueue.POISON))
        return Reading(Depth(main.messages, retry.messages, poison.messages), retry.next_due_at, self._working(snapshot.claims))

    def _working(self, claims: Sequence[Claim]) -> Working:
        import numpy as np
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import read_metadata

        from airflow_poison.core.delivery.sessions.journal import MAX_ATTEMPTS, SETTLED, STATE_MASK, MessageState, sections

        messages = attempts = 0
        for journal in (path for claim in claims for path in self.root.glob(f"{stage_folder(claim.key)}/*/journal/*.journal")):
            with contextlib.suppress(OSError):  # a pass that has just ended removes it
                for _, words, _ in sections(journal.read_bytes()):
                    states = words & STATE_MASK
                    messages += int(np.count_nonzero(np.isin(states, SETTLED)))
                    attempts += int(((words >> 8) & MAX_ATTEMPTS).sum()) + int(np.count_nonzero(states == MessageState.COMMITTED))
        rows = 0  # of a transformation, those of messages that it names among them
        for result in (path for claim in claims for path in self.root.glob(f"{stage_folder(claim.key)}/*/results/*/*/*.parquet")):
            with contextlib.suppress(OSError, ArrowInvalid):  # one that is being written has no footer
                rows += read_metadata(result).num_rows
        return Working(messages + max(0, rows - attempts), max(rows, attempts))

    def history(self) -> list[Depth]:
        """Return the depth at each version of the table, oldest first, from the statistics in its log (any Delta reader sees the same)."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self.root))
        return [_depth_of(DeltaTable(str(self.root), version=version)) for version in range(table.version() + 1)]


def landed(path: Path) -> tuple[int, int]:
    """Return how many rows an output has, and of how many flights they are: a flight is its carrier, number, airport and time."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        return 0, 0
    rows = DeltaTable(str(path)).to_pyarrow_table(columns=list(FLIGHT))
    return rows.num_rows, rows.group_by(list(FLIGHT)).aggregate([]).num_rows


def _depth_of(table: object) -> Depth:
    import pyarrow as pa

    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()  # type: ignore[attr-defined]  # deltalake is untyped
    rows = dict.fromkeys(("main", "retry", "poison"), 0)
    if "partition.sub_queue" in actions.schema.names:
        for name, number in zip(actions.column("partition.sub_queue").to_pylist(), actions.column("num_records").to_pylist(), strict=True):
            if name in rows:
                rows[name] += int(number or 0)
    return Depth(**rows)
