"""Messages of ``main`` that wait behind others of their groups (`store.parking`), read from two columns of the table's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_poison.store.parking import UNRESOLVED, first_of_groups, parks, waiting
from airflow_poison.store.table import files
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.queue_table import Table

_COLUMNS = ("lookup_id", "group_id")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A file of ``main``.

    :param waits: which of its messages wait, in the order of its rows.
    """

    file: DataFile
    lookup_ids: NDArray[np.int64]
    waits: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Behind:
    """How many messages wait behind others of their groups, and how many groups they are of."""

    messages: int = 0
    groups: int = 0


def parts(table: Table, snapshot: Snapshot) -> list[Part]:
    """Return the unclaimed files of ``main`` in queue order, with which of their messages wait."""
    there = {file.path for file in snapshot.files}
    for path in [path for path in table.groups if path not in there]:
        del table.groups[path]
    claimed, unresolved = snapshot.claimed_paths, _unresolved(table, snapshot)
    free = [file for file in _main(snapshot) if file.path not in claimed]
    columns = _columns(table, free)
    return [Part(file, ids, waiting(ids, groups, unresolved)) for file, (ids, groups) in zip(free, columns, strict=True)]


def behind(table: Table) -> Behind:
    """Return how many messages of ``main`` wait now, claimed ones included; none unless the queue is set so. Bodies are not read."""
    import numpy as np

    snapshot = table.view().snapshot
    unresolved = _unresolved(table, snapshot) if parks(snapshot.control.desk) else {}
    messages, found = 0, set[str]()
    for ids, groups in _columns(table, _main(snapshot)) if unresolved else ():
        waits = waiting(ids, groups, unresolved)
        messages += int(np.count_nonzero(waits))
        found.update(first_of_groups(ids[waits], groups.filter(waits)))
    return Behind(messages, len(found))


def _main(snapshot: Snapshot) -> list[DataFile]:
    return [file for file in snapshot.files if file.sub_queue == SubQueue.MAIN]


def _unresolved(table: Table, snapshot: Snapshot) -> dict[str, int]:
    """Return the smallest lookup id of the unresolved messages of each group, those that a reader of ``poison`` has claimed included."""
    found: dict[str, int] = {}
    for ids, groups in _columns(table, [file for file in snapshot.files if file.sub_queue in UNRESOLVED]):
        for group, first in first_of_groups(ids, groups).items():
            found[group] = min(first, found.get(group, first))
    return found


def _columns(table: Table, wanted: Sequence[DataFile]) -> list[tuple[NDArray[np.int64], pa.Array[Any]]]:
    """Return the lookup ids and the groups of files; groups of an earlier look stay known, since files are immutable."""
    known = table.groups
    table.bring([file for file in wanted if file.path not in known])
    for file in wanted:
        if file.path not in known:
            rows = files.read_columns(table.folder, file.path, _COLUMNS).combine_chunks()
            known[file.path] = rows["lookup_id"].to_numpy(), rows["group_id"].combine_chunks()
    return [known[file.path] for file in wanted]
