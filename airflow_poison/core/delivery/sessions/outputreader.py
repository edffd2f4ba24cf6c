"""What a handler prints and logs: the parent's end. Bounded, and always drained, so that no handler ever waits for a full pipe."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.sessions.output import HEADER, MARKER
from airflow_poison.core.delivery.sessions.verdicts import decoded_end

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self._tail, self._tail_row, self._said = b"", -1, 0
        self._label: Callable[[int], str] = lambda _row: ""
        self._in_flight: Callable[[], int] = lambda: -1

    def begin(self, label: Callable[[int], str], in_flight: Callable[[], int]) -> None:
        """Begin a batch.

        :param label: names the message of a row, for the log.
        :param in_flight: the row with the handler now, for text that does not say where it belongs.
        """
        self._label, self._in_flight = label, in_flight
        self._lines = self._bytes = self._cut_lines = 0

    def drain(self) -> None:
        """Read all there is now, up to a bound: somebody may write without end."""
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
        return decoded_end(self._tail, is_cut=self._said > len(self._tail))

    def end(self) -> None:
        """End a batch: log the unfinished line and how much was cut."""
        self.drain()
        self._end_line()
        if self._cut_lines:
            log.warning("%d more lines of the handler's output were cut (limit per batch: %d lines, %d bytes)", self._cut_lines, MAX_LINES, MAX_BYTES)
        self._cut_lines, self._tail, self._said = 0, b"", 0

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
            self._tail, self._tail_row, self._said = b"", row, 0
        self._tail, self._said = (self._tail + text)[-_TAIL:], self._said + len(text)
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
        log.log(min(self._level, _HIGHEST_LEVEL), "%s%s", self._label(self._row), line.decode(errors="replace"))
