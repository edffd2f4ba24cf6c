"""What a claim takes: the next files of a sub-queue, after those that have messages of later claims, too, were split or parted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airflow_poison.store.table import files, parked
from airflow_poison.store.table.changing import obstacle, split_file, split_files
from airflow_poison.values.errors import TableChangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import Table, View
    from airflow_poison.values.schema import SubQueue

_BY_LOOKUP_ID: Sequence[tuple[str, Literal["ascending", "descending"]]] = (("lookup_id", "ascending"),)
_QUEUE_ORDER: Sequence[tuple[str, Literal["ascending", "descending"]]] = (("priority", "descending"), *_BY_LOOKUP_ID)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a claim asks for."""

    key: str
    expires_at: datetime
    max_messages: int
    exclusive: bool
    sub_queue: SubQueue
    probe: bool

    @property
    def size(self) -> int | None:
        """How many messages a piece of a parted file has at most, that a later claim takes; None: all, since a probe wants few."""
        return None if self.probe else self.max_messages


@dataclass(frozen=True, slots=True)
class ToSplit:
    """A file that has to be split before it can be claimed.

    :param cut: gives the pieces of its messages, in the order in which they are received.
    """

    file: DataFile
    cut: Callable[[pa.Table], Iterable[pa.Table]]


@dataclass(frozen=True, slots=True)
class ToPart:
    """Files that have to be parted before they can be claimed: only some of their messages come next.

    :param parts: each with its messages by kind, in the order of its rows: those that come next; those that wait behind others of their groups, where
        some do; and those that a later claim takes.
    :param size: how many of these a piece has at most; None: all.
    :param order: in which they are received.
    """

    parts: Sequence[tuple[DataFile, Sequence[NDArray[np.bool_]]]]
    size: int | None
    order: Sequence[tuple[str, Literal["ascending", "descending"]]]


def pick(table: Table, view: View, wanted: Wanted) -> tuple[DataFile, ...] | ToSplit | ToPart | None:
    """Return the next free files in queue order while they fit; the first of them when it is too large alone.

    Where order is kept, no file may bring messages along in front of others that stay: files that interleave are parted. Messages of one conversation
    have one priority (spec SB-48), and come in the order in which they were sent.
    """
    claimed = view.claimed
    free = [file for file in view.snapshot.files if file.sub_queue == wanted.sub_queue and file.path not in claimed]
    if not free:
        return None
    if wanted.probe:
        if not wanted.exclusive:  # no order is kept: what has been split off once is probed again
            free.sort(key=lambda file: file.rows > wanted.max_messages)
        if free[0].rows > wanted.max_messages:
            return ToSplit(free[0], lambda rows: _split_off(rows, wanted.max_messages, first=wanted.exclusive))
    if free[0].rows > wanted.max_messages:
        return ToSplit(free[0], lambda rows: (rows.slice(start, wanted.max_messages) for start in range(0, rows.num_rows, wanted.max_messages)))
    picked: list[DataFile] = []
    room = wanted.max_messages
    for file in free:
        if file.rows > room:
            break
        picked.append(file)
        room -= file.rows
    stays = free[len(picked) :]
    if wanted.exclusive and any(_first(file) < max(map(_last, picked)) for file in stays):
        return _next(table, free, wanted)
    return tuple(picked)


def _first(file: DataFile) -> tuple[int, int]:
    """Return a lower bound of the order of a file's messages, as far as statistics show."""
    return -file.max_priority, file.min_lookup_id


def _last(file: DataFile) -> tuple[int, int]:
    return -file.min_priority, file.max_lookup_id


def _next(table: Table, free: Sequence[DataFile], wanted: Wanted) -> tuple[DataFile, ...] | ToPart:
    """Return the files of the next messages of a claim; those that have others, too, to be parted before. Two columns are read.

    :param free: in queue order.
    """
    import numpy as np

    most = wanted.max_messages
    found: list[DataFile] = []
    priorities, lookup_ids = np.empty(0, np.int64), np.empty(0, np.int64)
    for number, file in enumerate(free):
        table.bring([file])
        rows = files.read_columns(table.folder, file.path, ["priority", "lookup_id"])
        found.append(file)
        priorities = np.concatenate([priorities, -rows["priority"].to_numpy().astype(np.int64)])
        lookup_ids = np.concatenate([lookup_ids, rows["lookup_id"].to_numpy()])
        if number + 1 < len(free):
            priority, lookup_id = _first(free[number + 1])
            if np.count_nonzero((priorities < priority) | ((priorities == priority) & (lookup_ids < lookup_id))) >= most:
                break
    chosen = np.zeros(len(lookup_ids), bool)
    chosen[np.lexsort((lookup_ids, priorities))[:most]] = True
    of_files = np.split(chosen, np.cumsum([file.rows for file in found])[:-1])
    parts = [(file, some) for file, some in zip(found, of_files, strict=True) if some.any()]
    mixed = [(file, [some, ~some]) for file, some in parts if not some.all()]
    return ToPart(mixed, wanted.size, _QUEUE_ORDER) if mixed else tuple(file for file, _ in parts)


def pick_unparked(table: Table, view: View, wanted: Wanted) -> tuple[DataFile, ...] | ToPart | None:
    """Return the files of the first messages that do not wait behind others of their groups; those that have others, too, to be parted before.

    First by lookup id alone, so that no message is left out before a later one of its group. A file whose messages all wait is left as it is.
    """
    import numpy as np

    parts = parked.parts(table, view.snapshot)
    free = np.concatenate([part.lookup_ids[~part.waits] for part in parts]) if parts else ()
    if not len(free):
        return None
    last = np.partition(free, wanted.max_messages - 1)[wanted.max_messages - 1] if len(free) > wanted.max_messages else max(free)
    chosen = [(part, ~part.waits & (part.lookup_ids <= last)) for part in parts]
    mixed = [(part.file, [rows, part.waits, ~part.waits & ~rows]) for part, rows in chosen if rows.any() and not rows.all()]
    if mixed:
        return ToPart(mixed, wanted.size, _BY_LOOKUP_ID)
    return tuple(part.file for part, rows in chosen if rows.all())


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by(list(_QUEUE_ORDER))


def split(table: Table, found: ToSplit) -> None:
    """Split a file in a commit of its own."""
    whole = _in_order(files.read(table.folder, found.file))
    try:
        split_file(table, found.file, found.cut(whole))
    except TableChangedError:
        return  # another pass has claimed or split it: the next look at the table shows it


def _split_off(rows: pa.Table, number: int, *, first: bool) -> Iterator[pa.Table]:
    """Yield so many messages, the first ones or some from all over, and then the others."""
    import numpy as np

    chosen = np.zeros(rows.num_rows, bool)
    chosen[np.arange(number) if first else np.random.default_rng(rows.num_rows).choice(rows.num_rows, number, replace=False)] = True
    yield rows.take(np.flatnonzero(chosen))
    yield rows.take(np.flatnonzero(~chosen))


def part(table: Table, found: ToPart) -> None:
    """Part files in one commit: what comes next, and what waits, is then in files of its own."""

    def pieces(file: DataFile, kinds: Sequence[NDArray[np.bool_]]) -> Iterator[pa.Table]:
        rows = files.read(table.folder, file)
        *first, last = (rows.filter(kind) for kind in kinds)
        yield from first
        later = last.sort_by(list(found.order))
        size = found.size or max(1, later.num_rows)
        yield from (later.slice(start, size) for start in range(0, later.num_rows, size))

    table.bring([file for file, _ in found.parts])
    try:
        split_files(table, ((file, pieces(file, kinds)) for file, kinds in found.parts))
    except TableChangedError:
        if obstacle(table.view(), [file for file, _ in found.parts]) is None:
            raise  # a file is damaged
