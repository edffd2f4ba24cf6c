"""Move: put messages back from the poison sub-queue by hand (spec WCF-28)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.core.errors import MessageClaimedError, MessageNotFoundError
from airflow_poison.core.message import SubQueue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.seam import DataFile, QueueTable


def put_back(table: QueueTable, clock: Clock, lookup_ids: Collection[int] | None = None) -> int:
    """Move messages from ``poison`` to ``main``, with abort count 0 and one more move; return how many.

    :param lookup_ids: which; None: all that no pass has claimed.
    Raises MessageNotFoundError and MessageClaimedError before anything is moved.
    """
    wanted = None if lookup_ids is None else set(lookup_ids)
    if wanted is not None:
        _refuse(table, wanted)
    _make_ready(table, wanted, clock)
    ready = {file.path for file in _files(table) if _is_ready(table, file, wanted)}
    return table.move_files(lambda snapshot: [file for file in snapshot.files if file.path in ready], SubQueue.MAIN, clock.now()).messages


def _refuse(table: QueueTable, wanted: set[int]) -> None:
    snapshot = table.snapshot()
    claimed = {file.path for claim in snapshot.claims for file in claim.files}
    found: set[int] = set()
    for file in snapshot.files:
        if file.sub_queue == SubQueue.POISON and _may_hold(file, wanted):
            here = wanted & _ids(table, file)
            if here and file.path in claimed:
                raise MessageClaimedError(f"Messages {sorted(here)} of queue {table.name!r} are being received. Try again when that pass has ended.")
            found |= here
    if found != wanted:
        raise MessageNotFoundError(f"Messages {sorted(wanted - found)} are not in '{table.name};poison'. Nothing was moved.")


def _make_ready(table: QueueTable, wanted: set[int] | None, clock: Clock) -> None:
    """Split every file that holds other messages too, or counts that a put-back message does not have."""
    for file in _files(table):
        if (wanted is not None and not _may_hold(file, wanted)) or _is_ready(table, file, wanted):
            continue
        rows = table.read(file)
        chosen = _chosen(rows, wanted)
        if not chosen.num_rows:
            continue
        zeros = pa.array([0] * chosen.num_rows, pa.int32())
        chosen = chosen.set_column(chosen.schema.get_field_index("abort_count"), chosen.schema.field("abort_count"), zeros)
        others = rows.filter(pc.invert(pc.is_in(rows.column("lookup_id"), chosen.column("lookup_id"))))
        table.split_file(file, [piece for piece in (chosen, others) if piece.num_rows], clock.now())


def _files(table: QueueTable) -> Iterator[DataFile]:
    """Yield the files of ``poison`` that no pass has claimed."""
    snapshot = table.snapshot()
    claimed = {file.path for claim in snapshot.claims for file in claim.files}
    yield from (file for file in snapshot.files if file.sub_queue == SubQueue.POISON and file.path not in claimed)


def _is_ready(table: QueueTable, file: DataFile, wanted: set[int] | None) -> bool:
    if wanted is not None and not _may_hold(file, wanted):
        return False
    rows = table.read(file).select(["lookup_id", "abort_count"])
    counted = pc.max(rows.column("abort_count")).as_py() or 0
    return counted == 0 and _chosen(rows, wanted).num_rows == rows.num_rows


def _chosen(rows: pa.Table, wanted: set[int] | None) -> pa.Table:
    return rows if wanted is None else rows.filter(pc.is_in(rows.column("lookup_id"), pa.array(sorted(wanted), pa.int64())))


def _may_hold(file: DataFile, wanted: set[int]) -> bool:
    return any(file.min_lookup_id <= lookup_id <= file.max_lookup_id for lookup_id in wanted)


def _ids(table: QueueTable, file: DataFile) -> set[int]:
    return {lookup_id for lookup_id in table.read(file).column("lookup_id").to_pylist() if lookup_id is not None}
