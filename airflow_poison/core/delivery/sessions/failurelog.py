"""The journal's texts: one JSON line per rollback, halt or effect (effects.py), appended before the word that counts it.

A torn line (killed while writing) is skipped by readers: its word was never stored. So is one that has become unreadable since: then it is known
that a message failed, and not how. Equal traces are written once.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

from airflow_poison.core.delivery.sessions.effects import BEGINNING, Effect, Told, effect_of
from airflow_poison.core.errors import ServerSessionError
from airflow_poison.core.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_REMEMBERED_TRACES = 1_000
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Rollback:
    """One line of the log.

    :param section: the number of the batch in its journal.
    :param row: the message's row in the batch.
    :param attempts: its counted rollbacks before this one; with the row it names the delivery.
    :param innocent: its own delivery went well, another member of the transaction failed.
    """

    section: int
    row: int
    lookup_id: int
    attempts: int
    failure: Failure
    innocent: bool = False


class FailureLog:
    """The writing end; several processes may hold one (appends do not mix)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._written_traces: set[str] = set()

    def append(self, entry: Rollback) -> None:
        """Write one rollback. Raises ServerSessionError when the disk is full."""
        failure = entry.failure
        record: dict[str, object] = {
            "at": [entry.section, entry.row, entry.lookup_id, entry.attempts, int(entry.innocent)],
            "kind": failure.kind,
            "type": failure.type,
            "text": failure.text,
            "delay": failure.delay.total_seconds(),
        }
        if failure.trace:
            self._add_trace(record, failure.trace)
        self._write(record, entry.lookup_id)

    def append_halt(self, lookup_id: int, details: Mapping[str, str]) -> None:
        """Write down what is to be told of the halt that a message caused. Raises ServerSessionError when the disk is full."""
        self._write({"halt": lookup_id, "details": dict(details)}, lookup_id)

    def append_effect(self, lookup_id: int, line: bytes) -> None:
        """Write down what a message did in its conversation. Raises ServerSessionError when the disk is full."""
        self._write_line(line, f"What message {lookup_id} did in its conversation")

    def append_told(self, told: Told) -> None:
        """Write down where another log tells an effect. Raises ServerSessionError when the disk is full."""
        self._write(told.to_record(), told.effect.lookup_id)

    def _write(self, record: dict[str, object], lookup_id: int) -> None:
        self._write_line(json.dumps(record, separators=(",", ":")).encode(), f"The failure of message {lookup_id}")

    def _write_line(self, line: bytes, what: str) -> None:
        try:
            _write_all(self._descriptor, b"\n" + line + b"\n")
        except OSError as error:
            why = "the disk is full" if error.errno == errno.ENOSPC else os.strerror(error.errno or 0)
            raise ServerSessionError(
                f"{what} cannot be written: {why}. Nothing is lost, its delivery counts when the task runs again; free some space first."
            ) from error

    def _add_trace(self, record: dict[str, object], trace: str) -> None:
        key = blake2b(trace.encode(errors="replace"), digest_size=8).hexdigest()
        known = key in self._written_traces
        if not known:
            record["trace"] = trace
        if known or len(self._written_traces) < _REMEMBERED_TRACES:
            record["same"] = key
            self._written_traces.add(key)


def _write_all(descriptor: int, line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[os.write(descriptor, left) :]


class FailureReader:
    """The reading end: gives each line once, and knows the traces of earlier lines.

    :param path: of the log, for whoever wants its effects; None: nobody does, and they are passed over.
    :ivar halts: the details of each halt that was read, by the lookup id of the message that caused it.
    :ivar effects: in the order in which they were written.
    :ivar unreadable: lines that somebody has damaged; those that a killed writer has left unfinished are not among them.
    """

    def __init__(self, descriptor: int, path: str | None = None) -> None:
        self._descriptor, self._path, self._offset = descriptor, path, 0
        self._traces: dict[str, str] = {}
        self.halts: dict[int, Mapping[str, str]] = {}
        self.effects: list[Told] = []
        self.unreadable = 0

    def news(self) -> Iterator[Rollback]:
        """Return what has been appended since the last call. Call it while nobody writes."""
        for offset, line in self._lines():
            if line.startswith(BEGINNING):
                self._note_effect(offset, line)
            elif line:
                yield from self._read(line)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line and where it begins; in memory are the present piece and a line that began before it."""
        begun = b""
        while piece := os.pread(self._descriptor, max(_PIECE, len(begun)), self._offset):
            start = self._offset - len(begun)
            self._offset += len(piece)
            *lines, begun = (begun + piece).split(b"\n")
            for line in lines:
                yield start, line
                start += len(line) + 1
        yield self._offset - len(begun), begun

    def _note_effect(self, offset: int, line: bytes) -> None:
        if self._path is None:
            return
        effect: Effect | None = effect_of(line)
        if effect is not None:
            self.effects.append(Told(effect, self._path, offset, len(line)))
        else:
            self.unreadable += not _is_torn(line)

    def _read(self, line: bytes) -> Iterator[Rollback]:
        try:
            record = json.loads(line)
            if "halt" in record:
                self.halts[_lookup_id(record["halt"])] = {str(name): str(text) for name, text in record["details"].items()}
                return
            if "told" in record:
                self.effects.append(Told.of_record(record["told"]))
                return
            entry = self._rollback(record)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            self.unreadable += not _is_torn(line)
        else:
            yield entry

    def _rollback(self, record: dict[str, object]) -> Rollback:
        key = str(record.get("same", ""))
        trace = str(record["trace"]) if "trace" in record else self._traces.get(key, "")
        if key:
            self._traces[key] = trace
        section, row, lookup_id, attempts, innocent = cast("list[int]", record["at"])
        failure = Failure(
            FailureKind(str(record["kind"])),
            str(record["type"]),
            str(record["text"]),
            trace,
            timedelta(seconds=float(str(record["delay"]))),
        )
        return Rollback(int(section), int(row), _lookup_id(lookup_id), int(attempts), failure, bool(innocent))


def _is_torn(line: bytes) -> bool:
    return line.startswith(b"{") and (not line.endswith(b"}") or line.count(b"{") > line.count(b"}")) and b"\0" not in line


def _lookup_id(number: object) -> int:
    """Return a number as a lookup id. Raises ValueError."""
    found = int(str(number))
    if not 0 <= found < 1 << 63:
        raise ValueError(number)
    return found
