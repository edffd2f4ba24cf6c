"""Positions of sources as a part of the table: how far each was taken, in the commit that added its messages.

A source has one row in the partition ``_source`` that says its position, and files of keys where no order says what was taken. A commit that takes
the source further removes the row and adds another one: only this keeps two takes at the same time apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_poison.store.files import Commit
from airflow_poison.store.table import files
from airflow_poison.values.errors import SourceTakenError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import SOURCE, table_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.store.files import Advance, DataFile, LogState, Snapshot
    from airflow_poison.store.queue_table import Table, View

_RECORD, _KEYS = 0, 1
"""Parts of the partition, as move counts."""
_FEW = 16
"""Files of keys of one source, from which on the next commit joins them."""


@dataclass(frozen=True, slots=True)
class StoredSource:
    """How far a source was taken, as it is stored.

    :param record: the record of the last take, plain JSON values.
    :param file: of the row that says it; another one with each take.
    :param keys: files of keys.
    """

    name: str
    record: Mapping[str, Any]
    file: DataFile
    keys: tuple[DataFile, ...]


def stored_sources(table: Table, snapshot: Snapshot | None = None) -> tuple[StoredSource, ...]:
    """Return the sources that were taken into the queue, by name.

    :param snapshot: of this version. None: the newest.
    """
    return _stored(table, table.log.load()) if snapshot is None else _said(table, snapshot.sources)


def stored_source(table: Table, name: str) -> StoredSource | None:
    """Return how far a source was taken; None when it was not."""
    return next((each for each in stored_sources(table) if each.name == name), None)


def source_keys(table: Table, found: StoredSource) -> pa.Table:
    """Return the keys of a source: ``key`` and ``at``. Raises TableChangedError."""
    import pyarrow as pa

    table.bring(found.keys)
    parts = [files.read_columns(table.folder, file.path, ["message_id", "lookup_id"]).rename_columns(["key", "at"]) for file in found.keys]
    empty = pa.table({"key": pa.array([], pa.string()), "at": pa.array([], pa.int64())})
    return pa.concat_tables([empty, *parts]).combine_chunks()


def forget_source(table: Table, name: str, now: datetime) -> bool:
    """Forget how far a source was taken, in one commit; False when it was not known. It is taken from its beginning then."""

    def attempt(view: View) -> tuple[Commit | None, bool]:
        found = next((each for each in _stored(table, view.state) if each.name == name), None)
        if found is None:
            return None, False
        event = Event(EventType.POSITION_RESET, now, details={"source": name, "position": str(found.record.get("position", ""))})
        told = files.write_events(table.folder, view.state.version + 1, [event])
        return Commit("forget_source", add=told, remove=[found.file, *found.keys], details={"source": name}, scratch=told), True

    return table.change(attempt)


# The part of a send ---------------------------------------------------------------------------------------------------


class Advancing:
    """The files by which a send takes a source further: keys are written once, the row for each try of the commit."""

    def __init__(self, table: Table, advance: Advance) -> None:
        self._table, self._advance = table, advance
        known = self._before(table.log.load())
        old = () if known is None else known.keys
        joined = advance.keys_since is not None or len(old) >= _FEW
        self._gone = old if joined else ()
        self._kept = () if joined else old
        self._keys = self._write_keys(known if joined else None)

    def part(self, state: LogState) -> tuple[list[DataFile], list[DataFile]]:
        """Return what a commit on a version adds and removes. Raises SourceTakenError when another send has advanced the source."""
        known = self._before(state)
        self._keys = [files.renamed(self._table.folder, file) for file in self._keys]
        kept = [file.path for file in (*self._kept, *self._keys)]
        said = {**self._advance.record, "keys": kept}
        row = files.one_row(SOURCE, lookup_id=0, message_id=self._advance.source, body=json.dumps(said).encode())
        written = files.write_new(self._table.folder, SOURCE, _RECORD, row)
        reach("store.append.after_position")
        return [written, *self._keys], [] if known is None else [known.file, *self._gone]

    def discard(self) -> None:
        """Remove the files of keys: they did not become part of the table."""
        self._table.discard(self._keys)

    def _before(self, state: LogState) -> StoredSource | None:
        known = next((each for each in _stored(self._table, state) if each.name == self._advance.source), None)
        if (None if known is None else known.file.path) != self._advance.before:
            raise SourceTakenError(
                f"Somebody else has taken source {self._advance.source!r} into queue {self._table.name!r} meanwhile. Nothing was sent."
            )
        return known

    def _write_keys(self, joined: StoredSource | None) -> list[DataFile]:
        import pyarrow as pa
        import pyarrow.compute as pc

        keys, since = self._advance.keys, self._advance.keys_since
        parts = [] if keys is None else [keys.select(["key", "at"])]
        if joined is not None:
            parts.insert(0, source_keys(self._table, joined))
        if not parts:
            return []
        together = pa.concat_tables(parts)
        if since is not None:
            together = together.filter(pc.greater_equal(together["at"], pa.scalar(since, pa.int64())))
        if not together.num_rows:
            return []
        count = together.num_rows
        cells = {
            "message_id": together["key"],
            "lookup_id": together["at"],
            "sub_queue": pa.repeat(pa.scalar(SOURCE), count),
            "move_count": pa.repeat(pa.scalar(_KEYS, pa.int32()), count),
        }
        rows = pa.table([cells.get(each.name, pa.nulls(count, each.type)) for each in table_schema()], schema=table_schema())
        return [files.write_new(self._table.folder, SOURCE, _KEYS, rows)]


def _stored(table: Table, state: LogState) -> tuple[StoredSource, ...]:
    paths = state.paths(SOURCE)
    if not paths:
        return ()
    return _said(table, [file for file in state.files if file.sub_queue == SOURCE])


def _said(table: Table, there: Sequence[DataFile]) -> tuple[StoredSource, ...]:
    live = {file.path: file for file in there}
    found = [_read(table, live, file) for file in live.values() if file.move_count == _RECORD]
    return tuple(sorted(found, key=lambda each: each.name))


def _read(table: Table, live: Mapping[str, DataFile], file: DataFile) -> StoredSource:
    row = files.read_columns(table.folder, file.path, ["message_id", "body"]).to_pylist()[0]
    record = json.loads(row["body"])
    keys: Sequence[str] = record.pop("keys")
    return StoredSource(row["message_id"], record, file, tuple(live[path] for path in keys))
