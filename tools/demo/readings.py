"""What the demo reads from the queue's table while it works and afterwards, without a JVM."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.store import open_store
from airflow_poison.store.stage import stage_folder
from airflow_poison.values.errors import QueueNotFoundError
from airflow_poison.values.schema import SubQueue
from tools.demo.account import Depth, Taken
from tools.demo.lake import QUEUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.store.files import Claim
    from tools.demo.lake import Lake

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
    version: int = -1
    working: Working = field(default_factory=Working)


class Queue:
    """The demo's queue, read only."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._store = open_store(lake.queues, lake.options)

    def reading(self) -> Reading | None:
        """Return what waits now; None while there is no queue."""
        try:
            table = self._store.open(QUEUE, read_only=True)
        except QueueNotFoundError:
            return None
        snapshot = table.snapshot()
        now = datetime.now(UTC)
        main, retry, poison = (snapshot.depth(name, now) for name in (SubQueue.MAIN, SubQueue.RETRY, SubQueue.POISON))
        depth = Depth(main.messages, retry.messages, poison.messages)
        return Reading(depth, retry.next_due_at, snapshot.version, _working(Path(table.root), snapshot.claims))

    def history(self) -> list[Depth]:
        """Return the depth at each version of the table, oldest first, from the statistics in its log (any Delta reader sees the same)."""
        from deltalake import DeltaTable

        uri, options = self._lake.queue, dict(self._lake.options)
        log = sorted(DeltaTable(uri, storage_options=options).history(), key=lambda entry: int(entry["version"]))
        return [_depth_of(DeltaTable(uri, version=each["version"], storage_options=options), each["timestamp"] / 1_000) for each in log]

    def taken(self) -> list[Taken]:
        """Return what was taken from the source, oldest first, from the numbers that the same commits have set."""
        from deltalake import DeltaTable

        uri, options = self._lake.queue, dict(self._lake.options)
        if not DeltaTable.is_deltatable(uri, options):
            return []
        table, found = DeltaTable(uri, storage_options=options), list[Taken]()
        for entry in reversed(table.history()):
            said = json.loads(entry.get("userMetadata") or "{}")
            if said.get("operation") == "append":
                numbers = {name: table.transaction_version(f"{name}:{said['key']}") for name in ("read", "landed", "filtered", "send")}
                messages = numbers.pop("send") or 0
                read, landed, filtered = ((number or 0) for number in numbers.values())
                found.append(Taken(entry["version"], read or messages, landed, filtered, messages))  # all became messages: nothing else is counted
        return found

    def reasons(self) -> list[tuple[str, int]]:
        """Return why messages are in poison, and how many for each reason, most first."""
        from deltalake import DeltaTable

        table = DeltaTable(self._lake.queue, storage_options=dict(self._lake.options))
        errors = table.to_pyarrow_table(filters=[("sub_queue", "=", "poison")], columns=["last_error"])["last_error"].to_pylist()
        return Counter(str(error["message"]) if error else "no error" for error in errors).most_common()


def _working(root: Path, claims: Sequence[Claim]) -> Working:
    import numpy as np
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import read_metadata

    from airflow_poison.delivery.journal import MAX_ATTEMPTS, SETTLED, STATE_MASK, MessageState, sections

    messages = attempts = 0
    for journal in (path for claim in claims for path in root.glob(f"{stage_folder(claim.key)}/*/journal/*.journal")):
        with contextlib.suppress(OSError):  # a pass that has just ended removes it
            for _, words, _ in sections(journal.read_bytes()):
                states = words & STATE_MASK
                messages += int(np.count_nonzero(np.isin(states, SETTLED)))
                attempts += int(((words >> 8) & MAX_ATTEMPTS).sum()) + int(np.count_nonzero(states == MessageState.COMMITTED))
    rows = 0  # of a transformation, those of messages that it names among them
    for result in (path for claim in claims for path in root.glob(f"{stage_folder(claim.key)}/*/results/*/*/*.parquet")):
        with contextlib.suppress(OSError, ArrowInvalid):  # one that is being written has no footer
            rows += read_metadata(result).num_rows
    return Working(messages + max(0, rows - attempts), max(rows, attempts))


def landed(lake: Lake) -> tuple[int, int]:
    """Return how many rows an output has, and of how many flights they are: a flight is its carrier, number, airport and time."""
    from deltalake import DeltaTable

    options = dict(lake.options)
    if not DeltaTable.is_deltatable(lake.landed, options):
        return 0, 0
    rows = DeltaTable(lake.landed, storage_options=options).to_pyarrow_table(columns=list(FLIGHT))
    return rows.num_rows, rows.group_by(list(FLIGHT)).aggregate([]).num_rows


def _depth_of(table: object, at: float) -> Depth:
    import pyarrow as pa

    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()  # type: ignore[attr-defined]  # deltalake is untyped
    rows = dict.fromkeys(("main", "retry", "poison"), 0)
    if "partition.sub_queue" in actions.schema.names:
        for name, number in zip(actions.column("partition.sub_queue").to_pylist(), actions.column("num_records").to_pylist(), strict=True):
            if name in rows:
                rows[name] += int(number or 0)
    return Depth(**rows, at=at)
