"""The journal's texts: one JSON line per rollback, halt or effect, appended before the word that counts it.

A torn line (killed while writing) is skipped by readers: its word was never stored. So is one that has become unreadable since: then it is known
that a message failed, and not how. Equal exceptions are written whole once by each process, then every further message has a short line that names
the first; so are equal traces of different texts.

An effect is what a message did to the conversation endpoint that received it. Each says of which endpoint it was made. A try that resumes begins with
the endpoint that is stored and follows them, from each to the one that was made of its result: what was lost with a machine, and all that was made
of it, is not there then, and is delivered again.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from datetime import timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any, cast

from airflow_poison.delivery.platform import Appender
from airflow_poison.dialogs.acts import Change, ConversationEndpoint, Envelope, Outgoing
from airflow_poison.values.errors import ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind

_REMEMBERED = 1_000
_PIECE, _LINES = 1 << 20, 10_000
_ENCODER = json.JSONEncoder(separators=(",", ":"))
UNRECORDED = Failure(FailureKind.EXCEPTION, "unknown", "the process of the handler ended before the error of the last delivery was recorded")
_LOST = Failure(FailureKind.EXCEPTION, "unknown", "an exception whose text was in a line of the journal's log that cannot be read any more")


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


@dataclass(frozen=True, slots=True)
class LoggedSearch:
    """One line about batches of several: a call with one, or one that failed and whose parts did not.

    :param section: the number of the Arrow batch in its journal.
    :param rows: messages that were handed over.
    :param probe: whether they were a part of a batch that had failed.
    :param unstable: the details of an event.
    """

    section: int
    rows: int = 0
    probe: bool = False
    unstable: Mapping[str, str] | None = None


class FailureLog:
    """The writing end; several processes may hold one (appends do not mix)."""

    def __init__(self, descriptor: int) -> None:
        self._file = Appender(descriptor, "Nothing is lost, its delivery counts when the task runs again; free some space there first.")
        self._name = secrets.token_hex(4)
        self._written: dict[Failure, str] = {}
        self._written_traces: dict[str, str] = {}

    def append(self, entry: Rollback) -> None:
        """Write one rollback. Raises ServerSessionError when the disk is full."""
        known = self._written.get(entry.failure)
        if known is not None:
            self._write_line(_like(entry, known), f"The failure of message {entry.lookup_id}")
            return
        failure = entry.failure
        record: dict[str, object] = {
            "at": (entry.section, entry.row, entry.lookup_id, entry.attempts, int(entry.innocent)),
            "kind": failure.kind,
            "type": failure.type,
            "text": failure.text,
            "delay": failure.delay.total_seconds(),
        }
        if failure.trace:
            self._add_trace(record, failure.trace)
        if failure.kind is not FailureKind.EXCEPTION or len(self._written) >= _REMEMBERED:  # a lost line may cost others a text, never a kind
            self._write(record, entry.lookup_id)
            return
        key = record["key"] = f"{self._name}.{len(self._written)}"
        self._write(record, entry.lookup_id)
        self._written[failure] = key

    def extend(self, entries: Iterable[Rollback]) -> None:
        """Write many rollbacks; those like earlier ones with one call of the system for many. Raises ServerSessionError when the disk is full."""
        lines = list[bytes]()

        def write() -> None:
            if lines:
                self._write_line(b"\n".join(lines), f"How {len(lines):,} messages have failed")
                lines.clear()

        for entry in entries:
            known = self._written.get(entry.failure)
            if known is None:
                write()
                self.append(entry)
                continue
            lines.append(_like(entry, known))
            if len(lines) == _LINES:
                write()
        write()

    def append_halt(self, lookup_id: int, details: Mapping[str, str]) -> None:
        """Write down the facts of the halt that a message caused. Raises ServerSessionError when the disk is full."""
        self._write({"halt": lookup_id, "details": dict(details)}, lookup_id)

    def append_handed(self, section: int, rows: int, *, probe: bool) -> None:
        """Write down that a batch of several is handed over. Raises ServerSessionError when the disk is full."""
        self._write_line(b'{"handed":[%d,%d,%d]}' % (section, rows, probe), f"That a batch of {rows} messages is handed over")

    def append_unstable(self, section: int, details: Mapping[str, str]) -> None:
        """Write down that a batch failed, and its parts did not. Raises ServerSessionError when the disk is full."""
        self._write_line(_ENCODER.encode({"unstable": section, "details": dict(details)}).encode(), "That a batch is unstable")

    def append_effect(self, lookup_id: int, line: bytes) -> None:
        """Write down what a message did in its conversation. Raises ServerSessionError when the disk is full."""
        self._write_line(line, f"What message {lookup_id} did in its conversation")

    def append_logged(self, effect: LoggedEffect) -> None:
        """Write down where another log has an effect. Raises ServerSessionError when the disk is full."""
        self._write(effect.to_record(), effect.effect.lookup_id)

    def _write(self, record: dict[str, object], lookup_id: int) -> None:
        self._write_line(_ENCODER.encode(record).encode(), f"The failure of message {lookup_id}")

    def _write_line(self, line: bytes, what: str) -> None:
        self._file.write(b"\n" + line + b"\n", lambda: what)

    def _add_trace(self, record: dict[str, object], trace: str) -> None:
        known = self._written_traces.get(trace)
        if known is None:
            record["trace"] = trace
            if len(self._written_traces) >= _REMEMBERED:
                return
            known = self._written_traces[trace] = f"{self._name}.{len(self._written_traces)}"
        record["same"] = known


def _like(entry: Rollback, key: str) -> bytes:
    """Return the line of a rollback whose failure has a line already."""
    at = (entry.section, entry.row, entry.lookup_id, entry.attempts, entry.innocent)
    return b'{"at":[%d,%d,%d,%d,%d],"like":"%s"}' % (*at, key.encode())


class FailureReader:
    """The reading end: gives each line once, and knows the traces of earlier lines.

    :param path: of the log, to read its effects; None: they are passed over.
    :ivar halts: the details of each halt that was read, by the lookup id of the message that caused it.
    :ivar effects: in the order in which they were written.
    :ivar searches: records of batches of several, in the order in which it was written.
    :ivar unreadable: damaged lines, without the unfinished line of a killed writer.
    """

    def __init__(self, descriptor: int, path: str | None = None) -> None:
        self._descriptor, self._path, self._offset = descriptor, path, 0
        self._traces: dict[str, str] = {}
        self._failures: dict[str, Failure] = {}
        self.halts: dict[int, Mapping[str, str]] = {}
        self.effects: list[LoggedEffect] = []
        self.searches: list[LoggedSearch] = []
        self.unreadable = 0

    def news(self) -> Iterator[Rollback]:
        """Return what has been appended since the last call. Call it while no process writes."""
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
            self.effects.append(LoggedEffect(effect, self._path, offset, len(line)))
        else:
            self.unreadable += not _is_torn(line)

    def _read(self, line: bytes) -> Iterator[Rollback]:
        try:
            record = json.loads(line)
            if "halt" in record:
                self.halts[_lookup_id(record["halt"])] = {str(name): str(text) for name, text in record["details"].items()}
                return
            if "handed" in record:
                section, rows, probe = record["handed"]
                self.searches.append(LoggedSearch(int(section), int(rows), bool(probe)))
                return
            if "unstable" in record:
                details = {str(name): str(text) for name, text in record["details"].items()}
                self.searches.append(LoggedSearch(int(record["unstable"]), unstable=details))
                return
            if "logged" in record:
                self.effects.append(LoggedEffect.of_record(record["logged"]))
                return
            entry = self._rollback(record)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            self.unreadable += not _is_torn(line)
        else:
            yield entry

    def _rollback(self, record: dict[str, object]) -> Rollback:
        section, row, lookup_id, attempts, innocent = cast("list[int]", record["at"])
        failure = self._failures.get(str(record["like"]), _LOST) if "like" in record else self._failure(record)
        return Rollback(int(section), int(row), _lookup_id(lookup_id), int(attempts), failure, bool(innocent))

    def _failure(self, record: dict[str, object]) -> Failure:
        same = str(record.get("same", ""))
        trace = str(record["trace"]) if "trace" in record else self._traces.get(same, "")
        if same:
            self._traces[same] = trace
        delay = timedelta(seconds=float(str(record["delay"])))
        failure = Failure(FailureKind(str(record["kind"])), str(record["type"]), str(record["text"]), trace, delay)
        if "key" in record:
            self._failures[str(record["key"])] = failure
        return failure


def _is_torn(line: bytes) -> bool:
    return line.startswith(b"{") and (not line.endswith(b"}") or line.count(b"{") > line.count(b"}")) and b"\0" not in line


def _lookup_id(number: object) -> int:
    """Return a number as a lookup id. Raises ValueError."""
    found = int(str(number))
    if not 0 <= found < 1 << 63:
        raise ValueError(number)
    return found


# Effects


BEGINNING = b'{"effect":'
_WHAT = b',"change":'


class Needs(StrEnum):
    """What makes an effect count besides its line."""

    NOTHING = ""
    COMMITTED = "committed"  # the word of its message says so
    ENDED = "ended"  # the word of its message says so


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect as its line begins.

    :param before: the mark of the endpoint that it was made of; ``after``: of the one that it made.
    :param checksum: of the bytes behind it.
    """

    lookup_id: int
    handle: str
    before: str
    after: str
    needs: str
    checksum: int


@dataclass(frozen=True, slots=True)
class LoggedEffect:
    """Where a log has an effect.

    :param size: of the line in bytes.
    """

    effect: Effect
    path: str
    offset: int
    size: int

    def change(self) -> Change:
        """Read it. Raises ServerSessionError when the log is not what it was."""
        try:
            with open(self.path, "rb") as file:  # noqa: PTH123  (a plain string travels)
                line = os.pread(file.fileno(), self.size, self.offset)
            if effect_of(line) == self.effect:
                return _change_of(json.loads(_split(line)[1]))
            why = "its content has changed"
        except OSError as error:
            why = error.strerror or str(error)
        raise ServerSessionError(
            f"The attempt journal {self.path!r} cannot be read again: {why}. Nothing was committed; message {self.effect.lookup_id} was delivered "
            "and what it sent stands only there. Restore the file and run the task again; if it is lost for good, remove it."
        )

    def to_record(self) -> dict[str, object]:
        """Return JSON values."""
        return {"logged": [*astuple(self.effect), self.path, self.offset, self.size]}

    @classmethod
    def of_record(cls, values: list[Any]) -> LoggedEffect:
        """Return what ``to_record`` has written."""
        *effect, path, offset, size = values
        return cls(Effect(*effect), path, offset, size)


def mark_of(endpoint: ConversationEndpoint | None) -> str:
    """Return what identifies a version of an endpoint; empty for none."""
    if endpoint is None:
        return ""
    return blake2b(json.dumps(endpoint.to_dict(), sort_keys=True).encode(), digest_size=12).hexdigest()


def line_of(lookup_id: int, before: ConversationEndpoint | None, change: Change, needs: Needs) -> bytes:
    """Return the line of an effect."""
    what = json.dumps({"endpoint": change.endpoint.to_dict(), "sent": [_record_of(message) for message in change.sent]}).encode()
    effect = Effect(lookup_id, change.endpoint.handle, mark_of(before), mark_of(change.endpoint), needs.value, zlib.crc32(what))
    return b"".join((BEGINNING, json.dumps(astuple(effect)).encode(), _WHAT, what, b"}"))


def effect_of(line: bytes) -> Effect | None:
    """Return the effect in a whole line; None for one that is torn or damaged."""
    if not (line.startswith(BEGINNING) and line.endswith(b"}") and _WHAT in line):
        return None
    beginning, what = _split(line)
    try:
        effect = Effect(*json.loads(beginning))
    except (ValueError, TypeError):
        return None
    return effect if zlib.crc32(what) == effect.checksum else None


def _split(line: bytes) -> tuple[bytes, bytes]:
    at = line.index(_WHAT)
    return line[len(BEGINNING) : at], line[at + len(_WHAT) : -1]


def _record_of(message: Outgoing) -> list[object]:
    return [message.envelope.to_text(), message.message_type, message.priority, b64encode(message.body).decode()]


def _change_of(record: dict[str, Any]) -> Change:
    sent: Iterator[Outgoing] = (
        Outgoing(Envelope.from_text(envelope), message_type, b64decode(body), priority) for envelope, message_type, priority, body in record["sent"]
    )
    return Change(ConversationEndpoint.from_dict(record["endpoint"]), tuple(sent))
