"""What the message in hand has printed last, in a small file beside the journal that outlives every process of the task.

The pipe to the parent carries all output, but is lost with the parent. So the child also copies what Python code writes to the standard
streams and logs into this file, a mapped ring::

    header   8 bytes   how much has been written for the message so far; stored last, 0: nothing
             8         its lookup id
             8         when its first byte came, monotonic nanoseconds
    ring     the rest  its bytes, the newest over the oldest

One file a server session. All its blocks are allocated when it is made: a full disk can neither fail a handler's ``print`` nor end it
(SIGBUS). Not copied: what C code, subprocesses and forks of the handler write to the descriptors 1 and 2 themselves.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.sessions import platform
from airflow_poison.core.delivery.sessions.verdicts import MAX_TRACE, cut_front, decoded_end
from airflow_poison.core.file_modes import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

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

    :param journal: path of the journal file; nobody writes it any more.
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
