"""What a handler prints and logs, with the row that it was working on: the child's end, the parent's, and what is kept when both have ended.

Python's own streams and loggers write frames (marker, row, level, length, text) of at most ``PIPE_BUF`` bytes, which a pipe keeps
whole. Whatever else writes to descriptors 1 and 2 (C code, subprocesses) arrives raw, between the frames. The parent always drains the pipe,
so that no handler ever waits for a full one, and logs so much of it.

The pipe carries all output, but is lost with the parent. So the child also copies what Python code writes to the standard streams and logs
into a small file beside the journal that outlives every process of the task, a mapped ring::

    header   8 bytes   how much has been written for the message so far; stored last, 0: nothing
             8         its lookup id
             8         when its first byte came, monotonic nanoseconds
    ring     the rest  its bytes, the newest over the oldest

One file a server session. All its blocks are allocated when it is made: a full disk can neither fail a handler's ``print`` nor end it
(SIGBUS). Not copied: what C code, subprocesses and forks of the handler write to the descriptors 1 and 2 themselves.
"""

from __future__ import annotations

import io
import logging
import mmap
import os
import secrets
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from airflow_poison.delivery import platform
from airflow_poison.delivery.verdicts import MAX_TRACE, PrivateBatch, cut_front, decoded_end
from airflow_poison.values.machine import PRIVATE

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer


MARKER = b"\x00\x01\x00"
HEADER = struct.Struct("<3siBH")
MAX_TEXT = 4_096 - HEADER.size


def frame(row: int, level: int, text: bytes) -> bytes:
    """Return one frame; ``text`` has at most ``MAX_TEXT`` bytes."""
    return HEADER.pack(MARKER, row, level, len(text)) + text


class Captured:
    """What the streams and the loggers of a process share.

    :ivar lock: who prints has it; a thread may take it twice, for a signal handler may print, too.
    """

    def __init__(self, at: list[int], last: LastOutput) -> None:
        self.at, self.last = at, last
        self.begin()

    def begin(self) -> None:
        """Begin in this process: in one that was forked, a thread that does not exist any more may have had the lock."""
        self.lock = threading.RLock()


class _RowStream(io.RawIOBase):
    """Writes whole lines as frames with the row that they were printed for; threads may share it."""

    def __init__(self, descriptor: int, captured: Captured, level: int) -> None:
        super().__init__()
        self._descriptor, self._captured, self._level = descriptor, captured, level
        self._at, self._add = captured.at, captured.last.add
        self._pending, self._row = b"", -1

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Buffer) -> int:
        text = bytes(data)
        with self._captured.lock:
            self._add(text)
            if self._row != self._at[0]:
                self.flush()
                self._row = self._at[0]
            self._pending += text
            if b"\n" in text or len(self._pending) > MAX_TEXT:
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self._captured.lock:
            pending, self._pending = self._pending, b""
            write_frames(self._descriptor, self._row, self._level, pending)


def write_frames(descriptor: int, row: int, level: int, text: bytes) -> None:
    """Write a text of any length."""
    for start in range(0, len(text), MAX_TEXT):
        os.write(descriptor, frame(row, level, text[start : start + MAX_TEXT]))


class _RowHandler(logging.Handler):
    """Sends log records with their own level."""

    def __init__(self, captured: Captured) -> None:
        super().__init__()
        self._captured = captured
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{self.format(record)}\n".encode("utf-8", "replace")
            with self._captured.lock:
                self._captured.last.add(text)
                write_frames(2, self._captured.at[0], min(record.levelno, 255), text)
        except Exception:  # noqa: BLE001  (as every logging handler does)
            self.handleError(record)


def capture(at: list[int], last: LastOutput) -> None:
    """Replace the standard streams of this process and send what is logged at INFO and above.

    :param at: its only element is the row that is being delivered.
    :param last: gets a copy of everything.
    """
    captured = Captured(at, last)
    os.register_at_fork(after_in_child=captured.begin)
    for name, descriptor, level in (("stdout", 1, logging.INFO), ("stderr", 2, logging.WARNING)):
        raw = _RowStream(descriptor, captured, level)
        setattr(sys, name, io.TextIOWrapper(cast("BinaryIO", raw), "utf-8", "backslashreplace", write_through=True))
    root = logging.getLogger()
    root.addHandler(_RowHandler(captured))
    root.setLevel(logging.INFO)


# The parent's end


log = logging.getLogger("airflow_poison.handler")

MAX_LINES = 1_000
MAX_BYTES = 1024 * 1024
_TAIL = 8_192
_CHUNK = 1 << 16
_MAX_DRAIN = 64 << 20
_HIGHEST_LEVEL = 50


class OutputReader:
    """Reads a child's pipe without ever blocking, and logs its lines with the lookup id of their message."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._rest, self._line = b"", b""
        self._row, self._level = -1, logging.INFO
        self._lines = self._bytes = self._cut_lines = 0
        self._tail, self._tail_row, self._row_bytes = b"", -1, 0
        self._label: Callable[[int], str] = lambda _row: ""
        self._in_flight: Callable[[], int] = lambda: -1
        self._private: PrivateBatch | None = None

    def begin(self, label: Callable[[int], str], in_flight: Callable[[], int], private: PrivateBatch | None = None) -> None:
        """Begin a batch.

        :param label: names the message of a row, for the log.
        :param in_flight: the row with the handler now, for text that does not say where it belongs.
        :param private: what is not logged of its messages; None: nothing is hidden.
        """
        self._label, self._in_flight, self._private = label, in_flight, private
        self._lines = self._bytes = self._cut_lines = 0

    def drain(self) -> None:
        """Read all there is now, up to a bound, because a process may write without end."""
        drained = 0
        while drained < _MAX_DRAIN:
            try:
                chunk = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                return
            drained += len(chunk)
            self._take(chunk)

    def tail(self) -> str:
        """Return the last output of the message that is with the handler, for the trace of a crash; while none is, whatever came last."""
        row = self._in_flight()
        if row not in {-1, self._tail_row}:
            return ""
        return self._shown(self._tail_row, decoded_end(self._tail, is_cut=self._row_bytes > len(self._tail)))

    def end(self) -> None:
        """End a batch: log the unfinished line and how much was cut."""
        self.drain()
        self._end_line()
        if self._cut_lines:
            log.warning("%d more lines of the handler's output were cut (limit per batch: %d lines, %d bytes)", self._cut_lines, MAX_LINES, MAX_BYTES)
        self._cut_lines, self._tail, self._row_bytes = 0, b"", 0

    def close(self) -> None:
        """Close the pipe; a child that still writes gets an error."""
        os.close(self.descriptor)

    def _take(self, chunk: bytes) -> None:
        data = self._rest + chunk
        self._rest = b""
        while data:
            place = data.find(MARKER)
            if place != 0:
                raw, data = (data, b"") if place < 0 else (data[:place], data[place:])
                if place < 0 and raw.endswith((MARKER[:1], MARKER[:2])):
                    keep = 2 if raw.endswith(MARKER[:2]) else 1
                    raw, self._rest = raw[:-keep], raw[-keep:]
                self._text(raw, self._in_flight(), logging.INFO)
                continue
            if len(data) < HEADER.size:
                self._rest = data
                return
            _, row, level, length = HEADER.unpack_from(data)
            if len(data) < HEADER.size + length:
                self._rest = data
                return
            self._text(data[HEADER.size : HEADER.size + length], row, level)
            data = data[HEADER.size + length :]

    def _text(self, text: bytes, row: int, level: int) -> None:
        if not text:
            return
        if row != self._tail_row:
            self._tail, self._tail_row, self._row_bytes = b"", row, 0
        self._tail, self._row_bytes = (self._tail + text)[-_TAIL:], self._row_bytes + len(text)
        if (row, level) != (self._row, self._level):
            self._end_line()
            self._row, self._level = row, level
        *lines, rest = text.split(b"\n")
        for line in lines:
            self._line += line
            self._end_line()
        self._line = (self._line + rest)[:MAX_BYTES]

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        if not line:
            return
        self._lines += 1
        self._bytes += len(line)
        if self._lines > MAX_LINES or self._bytes > MAX_BYTES:
            self._cut_lines += 1
            return
        log.log(min(self._level, _HIGHEST_LEVEL), "%s%s", self._label(self._row), self._shown(self._row, line.decode(errors="replace")))

    def _shown(self, row: int, text: str) -> str:
        return text if self._private is None else self._private.line(row, text)


# The last output


SUFFIX = ".output"
SIZE = 16 * 1024
_HEADER = struct.Struct("=qqq")
_RING = SIZE - _HEADER.size
_PIECE = 4_096
_SHOWN = _RING - _PIECE
"""A process may be killed while a piece overwrites the oldest bytes; readers leave those out."""


def path_beside(journal: Path) -> Path:
    """Return a path for the file of one more session of this journal."""
    return journal.with_name(f"{journal.stem}.{secrets.token_hex(3)}{SUFFIX}")


def create(path: Path) -> int:
    """Open the file, made when it is not there; return its descriptor.

    Where it cannot be made, the file is one in memory: the trace of a kill is lost then, no delivery.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError:
        return _in_memory()
    try:
        platform.reserve(descriptor, SIZE)
    except OSError:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        return _in_memory()
    return descriptor


def _in_memory() -> int:
    descriptor = platform.anonymous_file("airflow-poison-output")
    os.truncate(descriptor, SIZE)
    return descriptor


class LastOutput:
    """The writing end; it begins empty. One thread at a time may add to it.

    :param descriptor: of the file.
    :param at: its only element is the row that is being delivered, -1 while there is none.
    """

    def __init__(self, descriptor: int, at: list[int]) -> None:
        self._mapping = mmap.mmap(descriptor, SIZE)
        self._ring = memoryview(self._mapping)[_HEADER.size :]
        self._header = memoryview(self._mapping)[: _HEADER.size].cast("q")
        self._at, self._row = at, -1
        self._ids: memoryview | None = None
        self._header[0] = 0

    def begin_batch(self, batch: pa.RecordBatch) -> None:
        """Go on with another batch."""
        ids = batch.column("lookup_id")  # not ``to_numpy``, which imports pandas: in a new child that is longer than a transaction may take
        self._ids = memoryview(ids.buffers()[1] or b"").cast("B").cast("q")[ids.offset : ids.offset + len(ids)]
        self._row = -1

    def forget(self) -> None:
        """Begin anew, for another delivery."""
        if self._row >= 0:
            self._row, self._header[0] = -1, 0

    def add(self, text: bytes) -> None:
        """Copy what has been printed."""
        row, header, size = self._at[0], self._header, len(text)
        if row < 0 or self._ids is None:
            return
        if row != self._row:
            header[0] = 0
            header[1], header[2] = self._ids[row], time.monotonic_ns()
            self._row = row
        end = header[0] + size
        if end <= _RING and size <= _PIECE:
            self._ring[end - size : end] = text
            header[0] = end
            return
        for start in range(max(size - _RING, 0), size, _PIECE):
            self._write(text[start : start + _PIECE])

    def leave(self) -> None:
        """Write nothing any more: this process was forked from the one that delivers."""
        self._ids = None

    def _write(self, piece: bytes) -> None:
        written = self._header[0]
        place = written % _RING
        first = min(len(piece), _RING - place)
        self._ring[place : place + first] = piece[:first]
        self._ring[: len(piece) - first] = piece[first:]
        self._header[0] = written + len(piece)


def last_output(journal: Path, lookup_id: int) -> str:
    """Return what a message had printed last, for the trace of a failure; empty when it had printed nothing.

    Its delivery was under way when all processes of the task ended, or was the last one of this message in its server session.

    :param journal: path of the journal file, which is not written any more.
    """
    found: tuple[int, str] = (-1, "")
    for content in _contents(journal):
        written, owner, began = _HEADER.unpack_from(content)
        if written > 0 and owner == lookup_id and began > found[0]:
            found = began, _text(content[_HEADER.size :], written)
    return found[1]


def _contents(journal: Path) -> Iterator[bytes]:
    """Read the files beside a journal; one that cannot be read costs a trace, nothing else."""
    with suppress(OSError):
        for path in journal.parent.iterdir():
            if path.name.startswith(f"{journal.stem}.") and path.suffix == SUFFIX:
                with suppress(OSError):
                    content = path.read_bytes()
                    if len(content) == SIZE:  # else it was being made
                        yield content


def _text(ring: bytes, written: int) -> str:
    place = written % _RING
    whole = ring[:written] if written <= _SHOWN else (ring[place:] + ring[:place])[-_SHOWN:]
    return cut_front(decoded_end(whole, is_cut=written > _SHOWN), MAX_TRACE)
