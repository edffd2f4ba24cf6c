"""What a pass's driver sees of its tasks while they run: what their handlers print and log, and how far they are.

What is printed and logged is forwarded through files in the claim's stage; how far they are is read from their journals.

A task's own standard error reaches the driver only where both run on one machine, and there as lines without a level. A file that both see
keeps each line's level, and takes no more than it is given room for.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from airflow_poison.delivery.journal import HEADER, IS_SETTLED, KEEPS_ROWS, MAGIC, STATE_MASK, MessageState, attempts_of, section_size
from airflow_poison.delivery.recovered import ALONE
from airflow_poison.values.machine import PRIVATE

FOLDER = "output"
"""Beside the folder of the journals."""
MAX_BYTES = 8 << 20
"""So much of a task's output is forwarded."""
MAX_READ = 4 << 20
"""So much is read of a task's file at a time."""
handler_log = logging.getLogger("airflow_poison.handler")


@contextmanager
def forwarding(journal_folder: str, task: str) -> Iterator[None]:
    """Write what handlers print and log in this block into a file of this task's; where that cannot be, the lines go nowhere.

    :param journal_folder: of the claim's holder.
    :param task: names the file.
    """
    writer = _Writer(Path(journal_folder).parent / FOLDER, task)
    level, propagate = handler_log.level, handler_log.propagate
    handler_log.addHandler(writer)
    handler_log.setLevel(logging.INFO)
    handler_log.propagate = False  # a worker's standard error would be a second way to the log
    try:
        yield
    finally:
        handler_log.removeHandler(writer)
        handler_log.setLevel(level)
        handler_log.propagate = propagate
        writer.close()


class _Writer(logging.Handler):
    """Appends a line of JSON for each record; the file is made for the first one."""

    def __init__(self, folder: Path, task: str) -> None:
        super().__init__()
        self._folder, self._task = folder, task
        self._descriptor, self._left = -1, MAX_BYTES

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # a full disk, or a fenced stage: a pass does not fail for its log
            self._write(record.levelno, record.getMessage())

    def _write(self, level: int, text: str) -> None:
        if self._left <= 0:
            return
        line = _line(level, text)
        self._left -= len(line)
        if self._left <= 0:
            line = _line(logging.WARNING, f"more output of this task was cut (limit: {MAX_BYTES:,} bytes)")
        os.write(self._opened(), line)

    def _opened(self) -> int:
        if self._descriptor < 0:
            self._folder.mkdir(exist_ok=True)  # without its parents: a fenced holder's stage stays away
            name = f"{self._task}-{os.getpid()}-{os.urandom(3).hex()}.jsonl"
            self._descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE)
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()


def _line(level: int, text: str) -> bytes:
    return json.dumps([level, text]).encode() + b"\n"


class ForwardedLog:
    """The driver's end: logs the lines of all tasks that have come since the last time, with their levels.

    :param journal_folder: of the claim's holder.
    :param queue: stands before each line.
    """

    def __init__(self, journal_folder: str, queue: str) -> None:
        self._folder, self._queue = Path(journal_folder).parent / FOLDER, queue
        self._read: dict[str, int] = {}
        with suppress(OSError):  # begins behind the lines of an earlier stage of this claim
            self._read = {name: (self._folder / name).stat().st_size for name in _names(self._folder)}

    def drain(self) -> None:
        """Log what is there now."""
        for name in _names(self._folder):
            while self._drain_one(name):
                pass

    def _drain_one(self, name: str) -> bool:
        """Log some lines of a file; return whether there may be more."""
        start = self._read.get(name, 0)
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(start)
                found = file.read(MAX_READ)
        except OSError:
            return False
        whole = found.rpartition(b"\n")[0]
        self._read[name] = start + len(whole) + bool(whole)
        for line in filter(None, whole.split(b"\n")):
            self._emit(line)
        return len(found) == MAX_READ and bool(whole)

    def _emit(self, line: bytes) -> None:
        """Log one line; what no task has written is passed over."""
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, list) and [type(each) for each in found] == [int, str]:
                handler_log.log(found[0], "%s %s", self._queue, found[1])


# How far the tasks are


_SETTLED = np.array(IS_SETTLED)


@dataclass(frozen=True, slots=True)
class Progress:
    """Messages of a pass so far.

    :param settled: their handler returned, and its transaction is committed.
    :param ended: rolled back for good in this pass: parked, poison, postponed, or what halted the queue.
    :param rollbacks: deliveries that were rolled back and counted.
    """

    settled: int = 0
    ended: int = 0
    rollbacks: int = 0

    @property
    def done(self) -> int:
        """Messages that no delivery of this pass follows."""
        return self.settled + self.ended

    def __add__(self, other: Progress) -> Progress:
        return Progress(self.settled + other.settled, self.ended + other.ended, self.rollbacks + other.rollbacks)


@dataclass(slots=True)
class _Read:
    """What is known of a journal: everything before ``offset`` is over."""

    offset: int = 0
    over: Progress = field(default_factory=Progress)


class JournalProgress:
    """Looks at the journals of one folder again and again; what is over is not read again.

    What it reads may change meanwhile, and is not checked: it is for people to look at, nothing is decided by it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, _Read] = {}

    def look(self) -> Progress:
        """Return how far the tasks are; of a task that was started again, its newest attempt counts."""
        newest: dict[str, str] = {}
        for name in _names(self._folder):
            if name.endswith(".journal") and not name.startswith("."):
                newest[name.partition("-")[0]] = name
        newest.pop(ALONE, None)
        return sum((self._one(name) for name in newest.values()), Progress())

    def _one(self, name: str) -> Progress:
        known = self._known.setdefault(name, _Read())
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return known.over
        try:
            return _read_on(descriptor, known)
        except (OSError, ValueError):
            return known.over
        finally:
            os.close(descriptor)


def _read_on(descriptor: int, known: _Read) -> Progress:
    """Add up what follows; go on behind the sections that are over and have no unfinished one before them."""
    open_now, offset, contiguous = Progress(), known.offset, True
    while (messages := _messages_at(descriptor, offset)) is not None:
        words = np.frombuffer(os.pread(descriptor, 4 * messages, offset + HEADER + 8 * messages), np.int32)
        found, is_over = _counted(words)
        offset += section_size(messages)
        contiguous = contiguous and is_over
        if contiguous:
            known.over, known.offset = known.over + found, offset
        else:
            open_now += found
    return known.over + open_now


def _messages_at(descriptor: int, offset: int) -> int | None:
    """Return how many messages the section has that begins here; None where none does."""
    header = os.pread(descriptor, 8, offset)
    number = int.from_bytes(header, "little") if len(header) == 8 else 0  # noqa: PLR2004  (bytes of an int64)
    return number & 0xFFFFFFFF if number >> 32 in {MAGIC, KEEPS_ROWS} else None


def _counted(words: np.ndarray[tuple[int], np.dtype[np.int32]]) -> tuple[Progress, bool]:
    states = np.minimum(words & STATE_MASK, max(MessageState))
    committed = int(np.count_nonzero((states == MessageState.COMMITTED) | (states == MessageState.CARRIED)))
    settled = int(np.count_nonzero(_SETTLED[states]))
    return Progress(committed, settled - committed, int(attempts_of(words).sum())), settled == len(words)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  (names only)
    except OSError:
        return []
