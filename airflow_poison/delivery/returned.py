"""Rows that deliveries returned, beside the journal: a record for each delivery, stored before the word that commits it.

A record names its messages and how often each had been rolled back before, so what a rolled-back delivery returned is never taken for what the
committed one did. A delivery of several messages may have one record for all of them: it is whole or absent, as they commit together. A torn record
was never counted by a word; a reader finds the next one by its mark.

When all messages of a batch have been delivered one by one, one more record has all that they returned, as columns: of several records of a delivery
the last one counts, so it is the only one that has to be read. The others are for the case that the process dies before.

The file is mapped: what is stored there outlives the process as what is written does, and a row takes no call of the system.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from airflow_poison.delivery import platform
from airflow_poison.delivery.handlers import check_returned
from airflow_poison.delivery.journal import COLUMNS_BEGINNING, COLUMNS_ENDING, ROWS_WRITTEN, columns_beside, rows_written
from airflow_poison.delivery.platform import NotWrittenError, check_open, file_of, identity, not_written
from airflow_poison.outputs.output import (
    ONLY,
    Output,
    RowSchema,
    as_bytes,
    divided,
    joined,
    of_none,
    one_row,
    rows_kept,
    rows_of,
    rows_together,
)
from airflow_poison.outputs.values import filled, has_unknown, same_name
from airflow_poison.values.data_frames import read_once
from airflow_poison.values.errors import OutputRowError, ServerSessionError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa
from airflow_poison.values.machine import private
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.delivery.stage import StageJob

_MARK = b"rows"
_HEAD = struct.Struct("<4sIII")  # mark, messages, size of what was returned, checksum of all that follows
_ONE = struct.Struct("<qi")  # a lookup id, attempts; of several messages all lookup ids, then all attempts
_FIRST_PIECE, _PIECE = 1 << 16, 1 << 20
"""The file grows in the first ones, which are enough for most tasks of many, up to the size of a later one."""
_LEAST_TOGETHER, _MOST_TOGETHER = 16, 16 << 20
"""Of fewer messages that are delivered one by one, and of more bytes, each message has its own record alone."""
NOTHING = b""
"""What a delivery that returned no rows has in its record."""


class ReturnedBy(NamedTuple):
    """Rows of a delivery, and the messages that they count for: of rows of several messages that travel together, rows of others do not count."""

    lookup_ids: Sequence[int]
    rows: bytes


class Record(NamedTuple):
    """What one delivery returned, as it is written down.

    :param attempts: how often each of its messages had been rolled back before.
    """

    lookup_ids: Sequence[int]
    attempts: Sequence[int]
    rows: bytes


class RowsWriter:
    """The writing end; several processes may hold one, while one of them at a time appends. Its blocks are allocated before they are stored to.

    :ivar last: the rows that were encoded last, which ``append_one`` is given.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._file = None if descriptor < 0 else identity(descriptor)
        self._written: memoryview | None = None
        self._begin = self._until = 0
        self._part = memoryview(b"")
        self.last: Sequence[tuple[Any, ...]] = ()
        self._of_batch: list[tuple[int, int, Sequence[tuple[Any, ...]]]] | None = None
        self._left = 0

    def append(self, records: Sequence[Record]) -> None:
        """Store what deliveries returned. Raises ServerSessionError when the disk is full."""
        self._store(b"".join(_record(*record) for record in records), sum(len(record.lookup_ids) for record in records))
        for (lookup_id, *_), (attempts, *_), returned in records if self._of_batch is not None else ():
            self.last = [row for _, rows in rows_kept(returned) for row in rows]
            self._collect(lookup_id, attempts, returned)

    def append_one(self, lookup_id: int, attempts: int, rows: bytes) -> None:
        """Store what the delivery of one message returned."""
        self._store(_framed(_ONE.pack(lookup_id, attempts), 1, rows))
        if self._of_batch is not None:
            self._collect(lookup_id, attempts, rows)

    def begin_batch(self) -> None:
        """Collect from now on what each message of a batch returned."""
        self._of_batch, self._left = [], _MOST_TOGETHER

    def end_batch(self) -> Sequence[tuple[int, int, Sequence[tuple[Any, ...]]]]:
        """Return what was collected: lookup ids, attempts, rows; nothing where it was too much."""
        found, self._of_batch = self._of_batch, None
        return found or ()

    def _collect(self, lookup_id: int, attempts: int, returned: bytes) -> None:
        assert self._of_batch is not None, "a batch was begun"
        self._of_batch.append((lookup_id, attempts, self.last if returned else ()))
        self._left -= len(returned)
        if self._left < 0:
            self._of_batch = None

    def append_whole(self, record: Record) -> None:
        """Store what all messages of a batch returned, and that this is all of it."""
        begin = self._store(_record(*record), len(record.lookup_ids))
        assert self._written is not None, "it was stored"
        self._written[1] = begin

    def _store(self, content: bytes, messages: int = 1) -> int:
        """Store this behind what there is; return where it begins."""
        begin = ROWS_WRITTEN.size if self._written is None else self._written[0]
        end = begin + len(content)
        if end > self._until:
            begin = self._map(len(content), messages)
            end = begin + len(content)
        assert self._written is not None, "it is mapped"
        self._part[begin - self._begin : end - self._begin] = content
        self._written[0] = end
        return begin

    def _map(self, size: int, messages: int) -> int:
        """Map what is behind the last record, so many bytes at least; return where that is."""
        try:
            check_open(self._descriptor, self._file)
            begin = max(rows_written(self._descriptor).end, ROWS_WRITTEN.size)
            piece = _PIECE if begin + size > _PIECE else _FIRST_PIECE
            until = -(-(begin + size) // piece) * piece
            platform.reserve(self._descriptor, until)
            if self._written is None:
                self._written = memoryview(mmap.mmap(self._descriptor, ROWS_WRITTEN.size)).cast("Q")
            page = begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            self._part = memoryview(mmap.mmap(self._descriptor, until - page, offset=page))
        except OSError as error:
            what = f"What {counted(messages, 'message')} returned"
            after = "Nothing is lost, it is delivered again when the task runs again; free some space there first."
            raise not_written(error, what, file_of(self._descriptor), after) from error
        self._begin, self._until = page, until
        return begin


def _record(lookup_ids: Sequence[int], attempts: Sequence[int], rows: bytes) -> bytes:
    if len(lookup_ids) == 1:
        of = _ONE.pack(lookup_ids[0], attempts[0])
    else:
        of = np.array(lookup_ids, "<i8").tobytes() + np.array(attempts, "<i4").tobytes()
    return _framed(of, len(lookup_ids), rows)


def _framed(of: bytes, messages: int, rows: bytes) -> bytes:
    content = of + rows
    return _HEAD.pack(_MARK, messages, len(rows), zlib.crc32(content)) + content


def records_of(lookup_ids: Sequence[int], attempts: Sequence[int], rows: bytes | Sequence[bytes]) -> list[Record]:
    """Return the records of a delivery of several messages.

    :param rows: of all messages together, or of each.
    """
    if isinstance(rows, bytes):
        return [Record(lookup_ids, attempts, rows)]
    return [Record((number,), (before,), each) for number, before, each in zip(lookup_ids, attempts, rows, strict=True)]


def keep_all(writer: RowsWriter, records: Sequence[Record], give_back: Callable[[], object]) -> None:
    """Write down what deliveries returned, before their words; when that cannot be done, their messages are given back as they were.

    Raises ServerSessionError.
    """
    try:
        writer.append(records)
    except ServerSessionError:
        give_back()
        raise
    reach("delivery.returned.after_records")


class RowsReader:
    """The reading end; gives each record once.

    :param at_end: those that are there already are passed over.
    """

    def __init__(self, descriptor: int, *, at_end: bool = False) -> None:
        self._descriptor, self._offset = descriptor, max(rows_written(descriptor).end, ROWS_WRITTEN.size) if at_end else 0

    def news(self) -> Iterator[tuple[Sequence[int], Sequence[int], int, bytes]]:
        """Yield the records that have been appended since the last call: lookup ids, attempts, where the rows begin in the file, and those.

        Call it while no process writes.
        """
        content = b""
        while piece := os.pread(self._descriptor, max(_PIECE, len(content)), self._offset + len(content)):
            content += piece
            at = 0
            while (found := _next_record(content, at)) is not None:
                lookup_ids, attempts, begin, end = found
                yield lookup_ids, attempts, self._offset + begin, content[begin:end]
                at = end
            self._offset += at
            content = content[at:]

    def returned_by(self, wanted: Mapping[int, int]) -> list[ReturnedBy]:
        """Return what these messages returned, in the order of the records that have been appended since the last call; of each the last one.

        :param wanted: the attempts of each message before the delivery that counts, by lookup id.
        """
        if (whole := self._whole(wanted)) is not None:
            return [whole]
        records, last = list[ReturnedBy](), dict[int, int]()
        for lookup_ids, attempts, _, rows in self.news():
            for lookup_id, before in zip(lookup_ids, attempts, strict=True):
                if wanted.get(lookup_id) == before:
                    last[lookup_id] = len(records)
            records.append(ReturnedBy(lookup_ids, rows))
        if len(last) == sum(len(record.lookup_ids) for record in records):
            return records
        counting = (record._replace(lookup_ids=[each for each in record.lookup_ids if last.get(each) == n]) for n, record in enumerate(records))
        return [record for record in counting if record.lookup_ids]

    def _whole(self, wanted: Mapping[int, int]) -> ReturnedBy | None:
        """Return the record of the whole batch, where it was written since the last call and has all of these messages."""
        end, begin = rows_written(self._descriptor)
        if not self._offset <= begin < end or (found := _next_record(os.pread(self._descriptor, end - begin, begin), 0)) is None:
            return None
        lookup_ids, attempts, first, behind = found
        if behind < end - begin or not wanted.items() <= dict(zip(lookup_ids, attempts, strict=True)).items():
            return None
        self._offset = end
        return ReturnedBy([*wanted], os.pread(self._descriptor, behind - first, begin + first))


def _next_record(content: bytes, start: int) -> tuple[Sequence[int], Sequence[int], int, int] | None:
    """Return the first whole record from here on: lookup ids, attempts, where its rows begin and end; None: there is none yet."""
    while (at := content.find(_MARK, start)) >= 0:
        if at + _HEAD.size > len(content):
            return None
        _, messages, size, checksum = _HEAD.unpack_from(content, at)
        first = at + _HEAD.size
        begin = first + messages * _ONE.size
        end = begin + size
        if end <= len(content) and checksum == zlib.crc32(content[first:end]):
            if messages == 1:
                lookup_id, attempts = _ONE.unpack_from(content, first)
                return (lookup_id,), (attempts,), begin, end
            ids = np.frombuffer(content, "<i8", messages, first)
            return ids.tolist(), np.frombuffer(content, "<i4", messages, first + ids.nbytes).tolist(), begin, end
        if end > len(content) and content.find(_MARK, at + 1) < 0:
            return None  # perhaps there is more to read
        start = at + 1
    return None


# Columns that were not declared ------------------------------------------------------------------------------------------


class LearnedColumns:
    """The columns of a try's outputs. Where they are those of the first rows, or may grow, what one of its processes learns all others know.

    A file for each output beside the journals, replaced whole, under a lock. Columns are only added, so a row's values keep their places.

    :param folder: of the journals.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of the outputs whose columns are known."""
        return [path.name[len(COLUMNS_BEGINNING) : -len(COLUMNS_ENDING)] for path in columns_beside(self._folder)]

    def known(self, name: str) -> pa.Schema | None:
        """Return the columns of an output as far as they are known; None: none is."""
        try:
            return pa.ipc.read_schema(pa.py_buffer(self.path(name).read_bytes()))
        except FileNotFoundError:
            return None

    def add(self, output: Output, news: Mapping[str, pa.DataType]) -> pa.Schema:
        """Add columns, and what was not known of types; return all. What others have learned meanwhile stays.

        Raises NotWrittenError when the file cannot be written, BrokenProcessError where a handler is to blame. A first row that comes second is
        checked against the first one.
        """
        try:
            with open(self.path(output.name).with_suffix(".lock"), "ab", opener=private) as lock:
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
                known = self.known(output.name)
                fields = {field.name: field for field in known or ()}
                for name, kind in news.items():
                    if name in fields:
                        fields[name] = fields[name].with_type(filled(fields[name].type, kind))
                    elif (known is None or output.evolve) and not (output.delta and same_name([*fields, name])):
                        fields[name] = pa.field(name, kind)
                found = pa.schema(list(fields.values()))
                if found != known:
                    self.write(output.name, found)
                return found
        except OSError as error:
            after = "Nothing is lost; free some space, or declare output_schema, then run the task again."
            raise not_written(error, f"The columns of the output {output.name!r}", str(self._folder), after, NotWrittenError) from error

    def write(self, name: str, columns: pa.Schema) -> None:
        """Set the columns of an output. Raises OSError."""
        path = self.path(name)
        beside = path.with_name(f".{path.name}-{secrets.token_hex(3)}")
        with open(beside, "wb", opener=private) as file:
            file.write(columns.serialize())
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)

    def path(self, name: str) -> Path:
        """Return the file of an output."""
        return self._folder / f"{COLUMNS_BEGINNING}{name}{COLUMNS_ENDING}"


class Returned:
    """What deliveries return in one process: checked, and written down before their words.

    :param descriptor: of the file beside the journal; -1 where another process writes.
    """

    def __init__(self, job: StageJob, descriptor: int) -> None:
        learned = LearnedColumns(Path(job.journal_folder))
        self._alone = job.outputs[0].alone
        self.writer = RowsWriter(descriptor)
        self._row_schemas: dict[str, RowSchema] = {}
        for output in job.outputs:
            known = learned.known(output.name)
            fixed = output.columns is not None and not output.evolve and not any(map(has_unknown, output.columns.types))
            learn = None if fixed else partial(learned.add, output)
            self._row_schemas[output.name] = RowSchema(output if known is None else replace(output, schema=known), learn)

        self._only = self._row_schemas[ONLY] if self._alone else None

    def rows(self, returned: object) -> bytes:
        """Return the rows that a handler returned, as they travel. Raises OutputRowError, HandlerNotRunError, and what a generator raises."""
        if type(returned) is dict and self._only is not None and (row := self._only.simple_row(returned)) is not None:
            self.writer.last = (row,)
            return one_row(row)
        if not isinstance(returned, GeneratorType):
            check_returned(returned)
        kept = rows_of(returned, self._row_schemas, alone=self._alone)
        self.writer.last = kept[0][1] if kept else ()
        return as_bytes(kept)

    def begin_batch(self) -> None:
        """Begin a batch whose messages are delivered one by one."""
        if self._only is not None:
            self.writer.begin_batch()

    def end_batch(self) -> None:
        """Store one record of all that its messages returned, where it is worth it. What cannot be stored is no error: each message has its own."""
        stored = self.writer.end_batch()
        if self._only is None or len(stored) < _LEAST_TOGETHER:
            return
        owners = [lookup_id for lookup_id, _, rows in stored for _ in rows]
        content = self._only.together(ONLY, [row for _, _, rows in stored for row in rows], owners)
        if content is not None:
            with suppress(ServerSessionError):
                self.writer.append_whole(Record([lookup_id for lookup_id, _, _ in stored], [attempts for _, attempts, _ in stored], content))

    def of_several(self, returned: object, lookup_ids: Sequence[int]) -> tuple[bytes | list[bytes], dict[int, OutputRowError]]:
        """Return the rows that a handler of batches returned, as they travel, together or of each message, and why rows do not fit, by place.

        Rows that name no message go with the last one, whose word decides. Raises as ``rows`` does, for those.
        """
        if not isinstance(returned, GeneratorType):
            check_returned(returned)
        if returned is None:
            return NOTHING, {}
        returned = {name: read_once(rows) for name, rows in returned.items()} if type(returned) is dict else read_once(returned)
        if (together := rows_together(returned, lookup_ids, self._row_schemas, alone=self._alone)) is not None:
            return together, {}
        own, others = divided(returned, lookup_ids, self._row_schemas, alone=self._alone)
        found, wrong = [NOTHING] * len(lookup_ids), dict[int, OutputRowError]()
        for place, rows in own.items():
            try:
                found[place] = as_bytes(rows_of(rows, self._row_schemas, alone=self._alone))
            except OutputRowError as error:
                wrong[place] = error
        if others:
            kept = as_bytes(rows_of(others, self._row_schemas, alone=self._alone))
            found[-1] = joined(found[-1], kept if len(found) == 1 else of_none(kept))
        return found, wrong


# Of earlier tries ------------------------------------------------------------------------------------------------------


def mapped(path: Path, rows: int) -> NDArray[np.int64]:
    """Map a file of so many rows of int64. Not ``.npy``: to parse its header is not safe in several threads of Python 3.11."""
    if not path.stat().st_size:
        return np.empty((rows, 0), np.int64)
    return np.memmap(path, np.int64, "r").reshape(rows, -1)


@dataclass(frozen=True, slots=True)
class ReturnedRows:
    """Where the files of earlier tries have what committed messages returned.

    :param paths: of the files.
    :param table: int64, a column for each message, ascending and each once: lookup id, number of the path, offset in the file, size.
    """

    paths: tuple[str, ...] = ()
    table: NDArray[np.int64] = field(default_factory=np.empty((4, 0), np.int64).copy)

    def merged(self, other: ReturnedRows) -> ReturnedRows:
        """Return what both say, of each message what ``other`` says."""
        if not other.table.shape[1]:
            return self
        later = other.table.copy()
        later[1] += len(self.paths)
        both = np.concatenate([self.table, later], axis=1)
        both = both[:, np.argsort(both[0], kind="stable")]
        last = np.ones(both.shape[1], bool)
        last[:-1] = both[0, 1:] != both[0, :-1]
        return ReturnedRows(self.paths + other.paths, both[:, last])

    def read(self, lookup_ids: NDArray[np.int64]) -> Iterator[tuple[str, ReturnedBy]]:
        """Yield what these messages returned, with the file that has it. Raises ServerSessionError when one is gone."""
        found = self.table[:, np.isin(self.table[0], lookup_ids)]
        for number in np.unique(found[1]).tolist():
            for returned in self._read(self.paths[number], found[:, found[1] == number]):
                yield self.paths[number], returned

    @staticmethod
    def _read(path: str, places: NDArray[np.int64]) -> Iterator[ReturnedBy]:
        of_each: dict[tuple[int, int], list[int]] = {}
        for lookup_id, _, offset, size in places.T.tolist():
            of_each.setdefault((offset, size), []).append(lookup_id)
        try:
            with open(path, "rb") as file:  # noqa: PTH123  (a plain string travels)
                for (offset, size), lookup_ids in of_each.items():
                    yield ReturnedBy(lookup_ids, os.pread(file.fileno(), size, offset))
        except OSError as error:
            raise ServerSessionError(
                f"The returned rows {path!r} cannot be read again: {error.strerror or error}. Nothing was committed; restore the file and run the "
                "task again."
            ) from error

    def save(self, path: Path) -> None:
        """Write it into two files with this beginning of their names."""
        with open(f"{path}.table", "wb", opener=private) as file:
            self.table.tofile(file)
        with open(f"{path}.json", "w", opener=private) as file:
            json.dump(self.paths, file)

    @classmethod
    def load(cls, path: Path) -> ReturnedRows:
        """Map what ``save`` wrote."""
        with open(f"{path}.json") as file:  # noqa: PTH123  (as above)
            return cls(tuple(json.load(file)), mapped(Path(f"{path}.table"), 4))


class Records(NamedTuple):
    """The records of one file; of several of one delivery the last, since one that is delivered at most once has a first one before it is called.

    :param keys: of lookup ids and attempts, ascending; ``places``: offset and size of each.
    """

    path: str
    keys: NDArray[np.int64]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, path: Path) -> Records:
        """Read a file; one that is gone has none."""
        found = np.empty((0, 4), np.int64)
        with suppress(FileNotFoundError), path.open("rb") as file:
            read = (
                (lookup_id, before, offset, len(rows))
                for lookup_ids, attempts, offset, rows in RowsReader(file.fileno()).news()
                for lookup_id, before in zip(lookup_ids, attempts, strict=True)
            )
            found = np.fromiter(read, np.dtype((np.int64, 4)))
        keys = _keys(found[:, 0], found[:, 1])
        order = np.argsort(keys, kind="stable")
        return cls(str(path), keys[order], found[order, 2:])

    def of_committed(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32]) -> tuple[ReturnedRows, NDArray[np.bool_]]:
        """Return what committed messages returned, and of which of them there is a record.

        :param attempts: of each message before the delivery that was committed.
        """
        wanted = _keys(lookup_ids, attempts)
        at = np.searchsorted(self.keys, wanted, side="right") - 1
        there: NDArray[np.bool_] = np.zeros(len(wanted), bool)
        if len(self.keys):
            there = (at >= 0) & (self.keys[np.maximum(at, 0)] == wanted)
        ids, places = lookup_ids[there], self.places[at[there]]
        table = np.stack([ids, np.zeros(len(ids), np.int64), places[:, 0], places[:, 1]])
        return ReturnedRows((self.path,), table[:, np.argsort(ids, kind="stable")]), there


def _keys(lookup_ids: NDArray[np.int64], attempts: NDArray[Any]) -> NDArray[np.int64]:
    return lookup_ids.astype(np.int64) << 12 | attempts.astype(np.int64)
