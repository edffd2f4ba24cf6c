"""Checks of messages and conversation endpoints one by one: none is made up or doubled, no count falls, and dialogs keep their order.

Messages are compared as far as files of both sides of a commit are still there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_poison.core.checking.findings import REPORT, Finding, Kind, Severity
from airflow_poison.core.checking.ledger import MESSAGES, counts_of, finding_of
from airflow_poison.core.errors import TableChangedError
from airflow_poison.core.schema import CONVERSATION, TRANSMISSION_QUEUE
from airflow_poison.core.store.table.files import commit_version, partition_of, read_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from airflow_poison.core.checking.ledger import Step
    from airflow_poison.core.store.delta.past import Past, Version
    from airflow_poison.core.store.files import DataFile

    Numbers = NDArray[np.int64]

_COUNTED = frozenset({"finish", "split", "compact"})
"""Commits in which no count may fall. People, and a restart of the broker, do reset counts: those are replacements."""
_WRITING = _COUNTED | {"replace", "transact"}


def check_rows(root: str, found: Iterable[Step]) -> Iterator[Finding]:
    """Yield what single messages tell: each commit that wrote messages anew is compared with what it read."""
    for step in found:
        if not (step.entry.ours and step.entry.operation in _WRITING and step.removed):
            continue
        before, after = _table(root, step.removed), _table(root, step.added)
        if before is not None and after is not None:
            yield from _compared(step, before, after)


class Rows:
    """The numbers of messages, row by row, in the order of lookup ids."""

    def __init__(self, columns: Sequence[Numbers]) -> None:
        order = np.argsort(columns[0], kind="stable") if len(columns[0]) else np.empty(0, np.int64)
        self.ids, self.aborts, self.crashes, self.moves, self.inside = (column[order] for column in columns)

    def waiting(self) -> Rows:
        """Return those that are in the queue, not on their way to another."""
        kept = self.inside == 1
        return Rows([column[kept] for column in (self.ids, self.aborts, self.crashes, self.moves, self.inside)])


def _table(root: str, files: Sequence[DataFile]) -> Rows | None:
    """Return the rows of files; None when one of them is gone or cannot be read: another finding tells, or a vacuum was right."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts: list[list[Numbers]] = [[np.empty(0, np.int64)] * 5]
    for file in files:
        try:
            with pq.ParquetFile(Path(root, file.path)) as parquet:
                cells = parquet.read(["lookup_id", "abort_count", "crash_count"])
        except (OSError, pa.ArrowException):
            return None
        size = cells.num_rows
        place = (np.full(size, file.move_count, np.int64), np.full(size, int(file.sub_queue in MESSAGES), np.int64))
        parts.append([*(_numbers(cells.column(name)) for name in ("lookup_id", "abort_count", "crash_count")), *place])
    return Rows([np.concatenate(column) for column in zip(*parts, strict=True)])


def _numbers(column: Any) -> Numbers:
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)


def _compared(step: Step, before: Rows, after: Rows) -> Iterator[Finding]:
    stays = after.waiting()
    unknown = np.setdiff1d(after.ids, before.ids)
    if len(unknown):
        yield finding_of(step, Kind.MESSAGE_UNKNOWN, f"put {len(unknown)} message(s) in that it had not taken, such as {_some(unknown)}")
    twice = _twice(stays.ids)
    if len(twice):
        yield finding_of(step, Kind.MESSAGE_TWICE, f"put {len(twice)} message(s) in twice, such as {_some(twice)}")
    gone, counts = len(np.setdiff1d(before.ids, after.ids)), counts_of(step)
    if counts is not None and gone != counts["committed"] + counts["dropped"]:
        yield finding_of(
            step,
            Kind.NOT_CONSERVED,
            f"leaves {gone} messages out, and says settled {counts['committed']} and dropped {counts['dropped']}",
        )
    if step.entry.operation in _COUNTED and not len(unknown) and not len(twice):
        yield from _fallen(step, before, stays)


def _fallen(step: Step, before: Rows, after: Rows) -> Iterator[Finding]:
    common, old, new = np.intersect1d(before.ids, after.ids, return_indices=True)
    moved = after.moves[new] > before.moves[old]
    falls = {
        "move count": after.moves[new] < before.moves[old],
        "crash count": after.crashes[new] < before.crashes[old],
        "abort count": (after.aborts[new] < before.aborts[old]) & ~moved,
    }
    for name, fell in falls.items():
        if fell.any():
            yield finding_of(step, Kind.COUNT_FELL, f"lowered the {name} of {int(fell.sum())} message(s), such as {_some(common[fell])}")


# The messages of now --------------------------------------------------------------------------------------------------


def check_ids(root: str, live: Iterable[DataFile], last_id: int) -> Iterator[Finding]:
    """Yield messages that are in the queue twice, or that nobody has sent. Files whose statistics leave no doubt are not opened."""
    files = sorted((file for file in live if file.sub_queue in MESSAGES), key=lambda file: file.min_lookup_id)
    for file in files:
        if file.min_lookup_id < 1 or file.max_lookup_id > last_id:
            what = f"a file has lookup ids {file.min_lookup_id} to {file.max_lookup_id}; expected 1 to {last_id}, the last that was given"
            yield Finding(Kind.MESSAGE_UNKNOWN, Severity.ERROR, what, file.path, REPORT)
    for group in _overlapping(files):
        rows = _table(root, group)
        twice = np.empty(0, np.int64) if rows is None else _twice(rows.ids)
        if len(twice):
            what = f"{len(twice)} message(s) are in the queue twice, such as {_some(twice)}"
            yield Finding(Kind.MESSAGE_TWICE, Severity.ERROR, what, ", ".join(file.path for file in group[:3]), REPORT)


def _overlapping(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Yield files, in groups, that may share messages with each other, or hold one twice."""
    group: list[DataFile] = []
    reach = 0
    for file in files:
        if group and file.min_lookup_id > reach:
            yield from _doubtful(group)
            group = []
        group.append(file)
        reach = max(reach, file.max_lookup_id)
    yield from _doubtful(group)


def _doubtful(group: list[DataFile]) -> Iterator[list[DataFile]]:
    """Leave out what holds every id of its range, one file alone."""
    if len(group) > 1 or any(file.rows != file.max_lookup_id - file.min_lookup_id + 1 for file in group):
        yield group


def _twice(ids: Numbers) -> Numbers:
    found, times = np.unique(ids, return_counts=True)
    return found[times > 1]


def _some(ids: Numbers) -> str:
    return ", ".join(str(number) for number in ids[:5])


# Dialogs: endpoints and messages that wait for their target queues change only by the verbs that are for it -----------


_BRING = {CONVERSATION: frozenset({"finish", "transact", "merge"}), TRANSMISSION_QUEUE: frozenset({"finish", "transact"})}
_TAKE = {CONVERSATION: frozenset({"transact", "merge"}), TRANSMISSION_QUEUE: frozenset({"transact", "remove_transmissions"})}
_ANYTHING = frozenset({"restore", "accept"})


def check_dialogs(root: str, past: Past, live: Iterable[DataFile]) -> Iterator[Finding]:
    """Yield what our commits cannot have done to dialogs, and versions of an endpoint of which nobody can tell which one counts."""
    for entry in past.entries:
        if entry.ours and entry.operation not in _ANYTHING:
            yield from _impossible(entry)
            yield from _misplaced(entry)
    yield from _endpoints_twice(root, [file for file in live if file.sub_queue == CONVERSATION])


def _impossible(entry: Version) -> Iterator[Finding]:
    for verb, paths, allowed in (("adds", [file.path for file in entry.adds], _BRING), ("removes", entry.removes, _TAKE)):
        for path in paths:
            place = partition_of(path)
            if place is not None and entry.operation not in allowed.get(place[0], {entry.operation}):
                what = f"the commit '{entry.operation}' {verb} {path}, which is not for it"
                yield Finding(Kind.HISTORY_IMPOSSIBLE, Severity.ERROR, what, f"version {entry.version}", REPORT)


def _misplaced(entry: Version) -> Iterator[Finding]:
    """Yield files of dialog messages whose name does not say their version."""
    for file in entry.adds:
        if file.sub_queue == TRANSMISSION_QUEUE and commit_version(file.path) != entry.version:
            what = f"dialog messages that were committed with version {entry.version} say another in their name: they are sent out of order"
            yield Finding(Kind.TRANSMISSION_ORDER, Severity.ERROR, what, file.path, REPORT)


def _endpoints_twice(root: str, live: Iterable[DataFile]) -> Iterator[Finding]:
    known: dict[tuple[str, int], str] = {}
    for file in live:
        try:
            rows = read_columns(root, file.path, ["conversation_id", "lookup_id"])
        except TableChangedError:  # another finding tells
            continue
        for row in rows.to_pylist():
            key = (row["conversation_id"], row["lookup_id"])
            if key in known:
                what = f"version {key[1]} of the conversation endpoint {key[0]} is there twice, in {known[key]}, too: which one counts cannot be told"
                yield Finding(Kind.ENDPOINT_TWICE, Severity.ERROR, what, file.path, REPORT)
            known[key] = file.path
