"""Conversation endpoints as rows: each change adds a version, the highest one of a handle counts, and a merge removes the others.

A merge takes no notice of what others add meanwhile: their versions are higher, and lie in files of their own. What is to be forgotten goes only
with a merge of all files: else an older version in another file would count again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.conversations_as_rows import newest
from airflow_poison.core.errors import ConservationError, TableChangedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.schema import CONVERSATION
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.results import Compacted
from airflow_poison.core.store.table import files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from airflow_poison.core.store.files import DataFile
    from airflow_poison.core.store.table.base import Table, View

_SMALL = 1024 * 1024  # bytes


def merge(table: Table, keep: Callable[[pa.Table], pa.Table], min_files: int) -> Compacted:
    """Join the files where there are many; large ones only when the others together have become as large."""
    known = table.view().snapshot.conversations
    run = _worth_joining(known)
    if len(run) < max(2, min_files):
        return Compacted()
    try:
        rows = _joined(table, run)
    except TableChangedError:
        if _there(table.view(), run):  # somebody has removed a file that the log names
            raise
        return Compacted()
    kept = _kept(table, rows, keep(rows)) if len(run) == len(known) else rows
    written = [files.write_new(table.root, CONVERSATION, 0, kept)] if kept.num_rows else []
    reach("store.merge.after_files")
    if not table.change(lambda view: _plan(table, view, run, written)):  # the file stays when this raises: the commit may have happened
        table.discard([file.path for file in written])
        return Compacted()
    return Compacted(files=len(run), into=len(written), rows=sum(file.rows for file in run), size=sum(file.size for file in run))


def _worth_joining(known: Sequence[DataFile]) -> list[DataFile]:
    """Leave out large files that are larger than all smaller ones together: else they would be written again and again."""
    run = sorted(known, key=lambda file: file.size)
    while run and run[-1].size > max(_SMALL, sum(file.size for file in run[:-1])):
        run.pop()
    return run


def _joined(table: Table, run: Sequence[DataFile]) -> pa.Table:
    import pyarrow as pa

    return newest(pa.concat_tables([files.read(table.root, file) for file in run]))


def _kept(table: Table, rows: pa.Table, kept: pa.Table) -> pa.Table:
    """Return the rows that stay. Raises ConservationError when they are not among those that there are."""
    before, after = (list(zip(each["conversation_id"].to_pylist(), each["lookup_id"].to_pylist(), strict=True)) for each in (rows, kept))
    if not set(after) <= set(before) or len(set(after)) < len(after):
        unknown = sorted(set(after) - set(before))[:1] or "one of them twice"
        message = f"The conversation endpoints of queue {table.name!r} were to be merged, and others than there are were to stay: {unknown}."
        raise ConservationError(message + " Nothing was changed.")
    return kept


def _plan(table: Table, view: View, run: Sequence[DataFile], written: list[DataFile]) -> tuple[Commit | None, bool]:
    if not _there(view, run):
        return None, False
    written[:] = [files.renamed(table.root, file) for file in written]
    return Commit("merge", add=tuple(written), remove=[view.live[file.path] for file in run]), True


def _there(view: View, run: Sequence[DataFile]) -> bool:
    return all(file.path in view.live for file in run)
