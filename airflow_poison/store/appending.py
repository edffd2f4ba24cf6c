"""Append: a send's batches become files with the next lookup ids, in one commit; a key that has sent before is recognised here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from airflow_poison.store import disk
from airflow_poison.store.data_files import SEND_LOCK, commit_prefix, describe, new_path, read_columns, renamed, write_events, write_new
from airflow_poison.store.files import COUNTS, SEQUENCE, Advance, Commit, DataFile, LogState, Sent
from airflow_poison.store.plans import Advancing
from airflow_poison.values.errors import InputError, SourceTakenError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import np, pa, pc, pq
from airflow_poison.values.machine import PRIVATE
from airflow_poison.values.schema import DEFAULT_PRIORITY, LANDING, LAST_ERROR, SubQueue, message_schema

if TYPE_CHECKING:
    from airflow_poison.store.disk import Folder
    from airflow_poison.store.queue_table import Table


def append(
    table: Table,
    batches: Iterable[pa.RecordBatch],
    key: str,
    now: datetime,
    advance: Callable[[], Advance] | None = None,
    *,
    of_source: bool = False,
    landings: pa.Table | None = None,
    details: Mapping[str, str] | None = None,
    counts: Mapping[str, int] | None = None,
) -> Sent:
    """Add messages to ``main`` with the next lookup ids, in one commit, once per key; to ``transmission`` while the queue is disabled.

    The commit decides that, whatever the state was before. The files are written before the turn is taken: then no send waits for a slow source of
    batches.

    :param batches: columns of ``message_schema()``; ``lookup_id`` is ignored and assigned; missing columns get defaults
        (``message_id`` a random one, priority 5, ``enqueued_at`` now, counts 0).
    :param key: a second append with the same key changes nothing and returns the first one's numbers with ``repeated=True``.
    :param advance: asked for when all batches are read: the source that they are of, which the commit takes further.
    :param of_source: the batches are a source's: messages with a ``last_error`` are malformed, and go into ``poison``, behind the others.
    :param landings: rows of the partition ``_output`` that come with the messages.
    :param details: stand in the log beside the key.
    :param counts: of rows that the messages are the failures of (``COUNTS``); kept with the key.
    Raises SourceTakenError when another send has advanced the source meanwhile; then nothing was sent.
    """
    state = table.log.load()
    if (done := _sent_before(table, state, key)) is not None:
        return done
    sending = _Sending(table, key, now, base=last_id(state), landings=landings, details=details or {}, counts=counts or {})
    del state  # the next look goes on from it
    reach("store.append.before_files")
    try:
        sending.write(batches, of_source=of_source)
        if advance is not None:
            sending.advancing = Advancing(table, advance())
    except BaseException:
        sending.discard()
        raise
    reach("store.append.after_files")
    try:
        with turn(f"{table.folder.root}/{SEND_LOCK}"):
            sent = sending.commit()  # files stay when this raises: the commit may have happened
    except SourceTakenError:  # before any commit that can have happened: a try that was overtaken by itself would have found its key
        sending.discard()
        raise
    if sent.repeated:
        sending.discard()
    return sent


def sent_before(table: Table, key: str) -> Sent | None:
    """Return what an earlier send with this key did; None when there was none."""
    return _sent_before(table, table.log.load(), key)


class _Sending:
    """One send: its messages, those that came with an error, and the source that it takes further."""

    def __init__(  # noqa: PLR0917  (the parts of one commit)
        self, table: Table, key: str, now: datetime, base: int, landings: pa.Table | None, details: Mapping[str, str], counts: Mapping[str, int]
    ) -> None:
        self._table, self._key, self._now, self._landings, self._details, self._counts = table, key, now, landings, details, counts
        self._good = Incoming(table.folder, base)
        self._malformed = Incoming(table.folder, base)
        self.advancing: Advancing | None = None

    def write(self, batches: Iterable[pa.RecordBatch], *, of_source: bool) -> None:
        """Write the files. Raises InputError."""
        apart = _Apart(self._malformed, self._now)
        self._good.write(apart.good(batches) if of_source else batches, self._now)
        apart.close()
        self._malformed.renumber(self._good.base + self._good.messages)

    def discard(self) -> None:
        """Remove what was written: it did not become part of the table."""
        self._good.discard()
        self._malformed.discard()
        if self.advancing is not None:
            self.advancing.discard()

    def commit(self) -> Sent:
        """Commit all of it. Raises SourceTakenError."""
        table = self._table
        for _ in table.tries():
            state = table.log.load()
            if (done := _sent_before(table, state, self._key)) is not None:
                return done
            found, removed = self.advancing.part(state) if self.advancing is not None else ([], [])
            base, holds = last_id(state), table.control(state).holds_sends
            self._good.put_into(SubQueue.TRANSMISSION if holds else SubQueue.MAIN)
            self._malformed.put_into(SubQueue.POISON)
            self._good.renumber(base)
            self._malformed.renumber(base + self._good.messages)
            reach("store.append.after_numbering")
            events = write_events(table.folder, state.version + 1, self._events())
            if self._landings is not None:
                events += [write_new(table.folder, LANDING, 0, self._landings, commit_prefix(state.version + 1, 1))]
            good, bad = self._good.messages, self._malformed.messages
            held = good if holds else 0
            more = {"held": held, "malformed": bad, **self._counts}
            numbers = {f"send:{self._key}": good + bad, f"first:{self._key}": base + 1}
            numbers |= {f"{name}:{self._key}": number for name, number in more.items() if number}
            commit = Commit(
                "append",
                add=[*self._good.files, *self._malformed.files, *found, *events],
                remove=removed,
                numbers=numbers,
                lasting={SEQUENCE: base + good + bad},
                details={"key": self._key, **self._details},
                scratch=[*found[:1], *events],
            )
            if table.log.commit(state, commit):
                return Sent(messages=good + bad, first_lookup_id=base + 1, held=held, malformed=bad, counts=self._counts)
            table.discard(commit.scratch)
        raise AssertionError  # pragma: no cover  (the tries end so)

    def _events(self) -> list[Event]:
        return [
            Event(
                EventType.MOVED_POISON,
                self._now,
                row["lookup_id"],
                details={"place": SubQueue.POISON.value, "error": row["reason"]},
                error=row[LAST_ERROR]["fingerprint"],
            )
            for file in self._malformed.files
            for row in read_columns(self._table.folder, file.path, ["lookup_id", "reason", LAST_ERROR]).to_pylist()
        ]


class _Apart:
    """Takes messages that came with an error out of a stream, and writes them in portions."""

    def __init__(self, malformed: Incoming, now: datetime) -> None:
        self._malformed, self._now = malformed, now
        self._waiting: list[pa.RecordBatch] = []

    def good(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the others."""
        for batch in batches:
            if "last_error" not in batch.schema.names or batch.column("last_error").null_count == batch.num_rows:
                yield batch
                continue
            fine = pc.is_null(batch.column("last_error"))
            yield batch.filter(fine)
            self._waiting.append(batch.filter(pc.invert(fine)))
            if sum(each.nbytes for each in self._waiting) > FILE_BYTES or sum(each.num_rows for each in self._waiting) > FILE_ROWS:
                self.close()

    def close(self) -> None:
        """Write what waits."""
        if self._waiting:
            self._malformed.write(self._waiting, self._now)
            self._waiting = []


def last_id(state: LogState) -> int:
    """Return the last lookup id that was given; 0 before the first send."""
    return state.number(SEQUENCE) or 0


def _sent_before(table: Table, state: LogState, key: str) -> Sent | None:
    """Return what an earlier send with this key did; it is durable then, whatever became of its process."""
    messages = state.number(f"send:{key}")
    if messages is None:
        return None
    table.log.confirm(state)
    first, held, malformed = (state.number(f"{what}:{key}") or 0 for what in ("first", "held", "malformed"))
    counts = {name: state.number(f"{name}:{key}") or 0 for name in COUNTS} if state.number(f"read:{key}") is not None else {}
    return Sent(messages=messages, first_lookup_id=first, repeated=True, held=held, malformed=malformed, counts=counts)


# Files of messages on their way in: written as they stream by, again when the numbering begins elsewhere --------------


FILE_ROWS = 100_000
FILE_BYTES = 64 * 1024 * 1024
GROUP_ROWS = 25_000
GROUP_BYTES = 16 * 1024 * 1024
_LAST_ID = 2**63 - 1
_FIRST_INSTANT, _LAST_INSTANT = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond since 1970 that Python's calendar has; others would stop every pass that meets them."""


@dataclass(slots=True)
class Incoming:
    """The files of one send.

    :param base: the last lookup id that others have; ours follow it.
    :param place: the sub-queue that they go into.
    """

    folder: Folder
    base: int
    place: SubQueue = SubQueue.MAIN
    files: list[DataFile] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Messages in all files."""
        return sum(file.rows for file in self.files)

    def write(self, batches: Iterable[pa.RecordBatch], now: datetime) -> None:
        """Write the files; memory holds one row group, whatever the number of messages. Raises InputError."""
        self._write_files(_row_groups(_completed(batches, now)), FILE_ROWS, FILE_BYTES)

    def renumber(self, base: int) -> None:
        """Make the ids follow ``base``: rewrites each file when that is not where they begin."""
        if base == self.base:
            return
        self.base = base
        old, self.files = self.files, []
        try:
            for file in old:
                self._write_files(_groups_of(Path(self.folder.root, file.path)), file.rows, 2 * FILE_BYTES)
        finally:
            self._remove(old)

    def put_into(self, place: SubQueue) -> None:
        """Give the files new names in a sub-queue; for each try of a commit others. Raises TableChangedError when one was removed."""
        self.place = place
        for number, file in enumerate(self.files):
            self.files[number] = renamed(self.folder, file, place.value)

    def discard(self) -> None:
        """Remove the files: they did not become part of the table."""
        self._remove(self.files)
        self.files = []

    def _remove(self, files: Iterable[DataFile]) -> None:
        for file in files:
            self.folder.remove(file.path)

    def _write_files(self, groups: Iterator[pa.Table], most_rows: int, most_bytes: int) -> None:
        pending = next(groups, None)
        while pending is not None:
            path = new_path(self.place, 0)
            target = Path(self.folder.root, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            first = self.base + self.messages + 1
            rows = size = 0
            try:
                with pq.ParquetWriter(target, message_schema(), write_page_checksum=True) as writer:
                    while pending is not None and (not rows or (rows + pending.num_rows <= most_rows and size + pending.nbytes <= most_bytes)):
                        writer.write_table(_numbered(pending, first + rows))
                        rows, size = rows + pending.num_rows, size + pending.nbytes
                        pending = next(groups, None)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
            self.files.append(describe(target, path))


def _groups_of(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        for number in range(parquet.num_row_groups):
            yield parquet.read_row_group(number)


def _numbered(table: pa.Table, first: int) -> pa.Table:
    if first + table.num_rows > _LAST_ID:
        raise InputError(
            f"The queue has no lookup ids left: the next one would be {first}, the last one there is is {_LAST_ID}. Send to another queue."
        )
    ids = pa.array(np.arange(first, first + table.num_rows, dtype=np.int64))
    return table.set_column(0, message_schema().field("lookup_id"), ids)


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Return the same rows in portions of a good size: small batches joined, big ones cut."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        for piece in _cut(table):
            if waiting and (rows + piece.num_rows > GROUP_ROWS or size + piece.nbytes > GROUP_BYTES):
                yield pa.concat_tables(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if waiting:
        yield pa.concat_tables(waiting)


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """Return slices that respect both limits: cut by rows, then halved while too large (bodies differ in size)."""
    if table.num_rows <= 1 or (table.num_rows <= GROUP_ROWS and table.nbytes <= GROUP_BYTES):
        if table.num_rows:
            yield table
        return
    half = GROUP_ROWS if table.num_rows > GROUP_ROWS else table.num_rows // 2
    yield from _cut(table.slice(0, half))
    yield from _cut(table.slice(half))


def _completed(batches: Iterable[pa.RecordBatch], now: datetime) -> Iterator[pa.Table]:
    """Return tables with every column of ``message_schema()``: defaults where columns or values are missing."""
    send = token_hex(8)
    count = 0
    defaults = {"priority": DEFAULT_PRIORITY, "enqueued_at": now, "abort_count": 0, "crash_count": 0}
    for batch in batches:
        rows = batch.num_rows
        dash = pa.repeat(pa.scalar("-"), rows)
        numbers = pa.array(np.arange(count, count + rows, dtype=np.int64)).cast(pa.string())
        columns: list[pa.Array[Any]] = []
        _check_columns(batch)
        for column in message_schema():
            values = _cast(batch, column) if column.name in batch.schema.names else pa.nulls(rows, column.type)
            if column.name == "lookup_id":
                values = pa.nulls(rows, column.type)
            elif column.name == "message_id" and values.null_count:
                values = pc.coalesce(values, pc.binary_join_element_wise(pa.repeat(pa.scalar(send), rows), numbers, dash))
            elif column.name in defaults and values.null_count:
                values = pc.fill_null(values, pa.scalar(defaults[column.name], column.type))
            columns.append(values)
        count += rows
        yield _checked(pa.Table.from_arrays(columns, schema=message_schema()))


def _checked(messages: pa.Table) -> pa.Table:
    """Return the messages when every reader can read them. Raises InputError, which names the column."""
    for each in message_schema():
        column = messages.column(each.name)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InputError(f"Column {each.name!r} holds what no reader can read: {error}. Decode or cast it rightly; nothing was sent.") from error
        if pa.types.is_timestamp(each.type) and column.null_count < len(column):
            numbers = column.cast(pa.int64())
            least, most = pc.min(numbers).as_py(), pc.max(numbers).as_py()
            if least < _FIRST_INSTANT or most > _LAST_INSTANT:
                raise InputError(f"Column {each.name!r} holds an instant outside the years 1 to 9999. Correct it, or leave it out; nothing was sent.")
    return messages


def _check_columns(batch: pa.RecordBatch) -> None:
    unknown = sorted(set(batch.schema.names) - set(message_schema().names))
    if unknown:
        message = f"Messages have no column {', '.join(unknown)}; allowed: {', '.join(message_schema().names)}. Put further values into properties."
        raise InputError(message)


def _cast(batch: pa.RecordBatch, column: pa.Field[Any]) -> pa.Array[Any]:
    try:
        return batch.column(column.name).cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"Column {column.name!r} is {batch.schema.field(column.name).type}, which cannot become {column.type}: {error}"
        raise InputError(message) from error


# Turns of senders -----------------------------------------------------------------------------------------------------


_PATIENCE = 10.0  # seconds; a holder that stands still (a stopped process) must not stop the others
_POLL = 0.002


@contextmanager
def turn(path: str) -> Iterator[bool]:
    """Hold the lock file while the block runs, or go on without it after a while; the kernel frees it when the holder dies.

    Advisory: correctness comes from compare-and-swap, this only keeps a big sender from being overtaken for ever.
    Who may not open a lock file that another user has made goes on without it, too.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except PermissionError:
        yield False
        return
    try:
        try:
            held = disk.lock(descriptor, _PATIENCE, _POLL)
        except OSError:  # a file system without locks
            held = False
        yield held
    finally:
        os.close(descriptor)
