"""What a handler prints and logs, with the row that it was working on: the child's end.

Python's own streams and loggers write frames (marker, row, level, length, text) of at most ``PIPE_BUF`` bytes, which a pipe keeps
whole. Whatever else writes to descriptors 1 and 2 (C code, subprocesses) arrives raw, between the frames. What goes into a frame is
first copied to where it outlives the reader of the pipe (lastoutput.py).
"""

from __future__ import annotations

import io
import logging
import os
import struct
import sys
import threading
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from airflow_poison.core.delivery.sessions.lastoutput import LastOutput

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
