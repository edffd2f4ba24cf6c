"""The journal folder of one try: what it left there (sections, texts, transactions that were open when it ended), and how far it is while it runs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from airflow_poison.core.delivery.sessions import recovered
from airflow_poison.core.delivery.sessions.journal import HEADER, MAGIC, section_size, sections
from airflow_poison.core.delivery.sessions.recovered import Texts, texts_of
from airflow_poison.core.delivery.sessions.words import IS_SETTLED, STATE_MASK, State, attempts_of, left_open
from airflow_poison.core.errors import ServerSessionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    from airflow_poison.core.delivery.sessions.failurelog import LoggedEffect
    from airflow_poison.core.delivery.sessions.words import OpenTransaction


ALONE = "alone"
"""The partition of messages that are delivered alone, before the others: each is a section of its own, and forced to disk."""
BEGUN = "begun"
"""The name of the note beside the journal folder (``TryNote``)."""
_POLL_SECONDS = 0.05


class ReadSection(NamedTuple):
    """One section of a journal.

    :param path: of the journal.
    """

    ids: NDArray[np.int64]
    words: NDArray[np.int32]
    path: Path

    @property
    def alone(self) -> bool:
        """Whether its messages were delivered alone, before the others."""
        return self.path.name.startswith(f"{ALONE}-")


class Open(NamedTuple):
    """What a section left open that nobody has taken over.

    :param section: its place in the try.
    :param rows: of the messages that were in flight.
    :param transactions: how many were open.
    """

    section: int
    rows: tuple[int, ...]
    transactions: int


@dataclass(frozen=True, slots=True)
class Left:
    """What a try left, in the order in which its journals were begun."""

    sections: list[ReadSection]
    texts: Texts

    def opens(self) -> list[Open]:
        """Return what was open when the try ended; what a later attempt of the same task has counted and gone on with is not."""
        found = [(place, left_open(section.words)) for place, section in enumerate(self.sections)]
        found = [(place, left) for place, left in found if left.in_flight or (left.held and not left.committed)]
        if not found:
            return []
        further = self._further({int(self.sections[place].ids[row]) for place, left in found for row in (*left.in_flight, *left.held)})
        opens = (self._open(place, left, further) for place, left in found)
        return [each for each in opens if each.transactions]

    def _further(self, ids: set[int]) -> dict[int, int]:
        """Return the most attempts that any section says of these messages; a settled one has had more than any."""
        wanted, most = np.fromiter(ids, np.int64, len(ids)), dict[int, int]()
        for section in self.sections:
            for row in np.flatnonzero(np.isin(section.ids, wanted)):
                value = int(section.words[row])
                attempts = 1 << 20 if IS_SETTLED[value & STATE_MASK] else attempts_of(value)
                most[int(section.ids[row])] = max(attempts, most.get(int(section.ids[row]), 0))
        return most

    def _open(self, place: int, left: OpenTransaction, further: dict[int, int]) -> Open:
        section = self.sections[place]
        rows, held = (
            tuple(row for row in some if further[int(section.ids[row])] <= attempts_of(int(section.words[row])))
            for some in (left.in_flight, () if left.committed else left.held)
        )
        return Open(place, rows, 1 if held else len(rows))


def read_try(folder: Path, deadline: float, partition: str | None = None) -> Left:
    """Read the journals of a folder.

    :param partition: only those of this partition; None: all.
    :param deadline: until when to wait for journals whose writers still live, monotonic seconds.
    :raises ServerSessionError: a writer still lives then, or a journal is there and cannot be read.
    """
    found: list[ReadSection] = []
    failures, halts, late = {}, {}, frozenset[tuple[int, int]]()
    effects: tuple[LoggedEffect, ...] = ()
    for path in sorted(recovered.journal_paths(folder, f"{partition or '*'}-*.journal"), key=_begun_at):
        content = _read_when_quiet(path, deadline)
        texts = texts_of(path.with_suffix(".log"))
        failures.update(texts.failures)
        halts.update(texts.halts)
        late |= texts.timeouts
        effects += texts.effects
        found += (ReadSection(ids, words, path) for ids, words in sections(content, partial(recovered.tell_damage, path)))
    return Left(found, Texts(failures, halts, late, effects))


def dead_with_work(folder: Path, but: str) -> list[str]:
    """Return the journals of other partitions whose writers have died with something open."""
    return [path.name for path in _of_others(folder, but) if _left_work(path)]


def _of_others(folder: Path, partition: str) -> Iterable[Path]:
    return (path for path in recovered.journal_paths(folder, "*-*.journal") if not path.name.startswith(f"{partition}-"))


def _left_work(path: Path) -> bool:
    with recovered.ReadingJournal(path), path.open("rb") as file, _locked(file) as quiet:
        return quiet and any(left_open(words).in_flight for _, words in sections(file.read()))
    return False


def _begun_at(path: Path) -> tuple[str, str]:
    partition, _, begun = path.name.partition("-")
    return begun, partition


@contextmanager
def _locked(file: BinaryIO) -> Iterator[bool]:
    """Say whether nobody can write to a journal any more."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
            raise
        yield False
    else:
        yield True


def _read_when_quiet(path: Path, deadline: float) -> bytes:
    with recovered.ReadingJournal(path):
        return _read_unlocked(path, deadline)
    return b""


def _read_unlocked(path: Path, deadline: float) -> bytes:
    with path.open("rb") as file:
        while True:
            with _locked(file) as quiet:
                if quiet:
                    return file.read()
            if time.monotonic() >= deadline:
                raise ServerSessionError(
                    f"The attempt journal {str(path)!r} still has a living writer: an earlier task attempt has not ended. "
                    "Its outcomes are needed before these messages are delivered again; end that process, then run the task again."
                )
            time.sleep(_POLL_SECONDS)


# The note beside the journals


class Forced(StrEnum):
    """What of a try's journals is forced to disk."""

    NOTHING = "nothing"  # but the journal of messages that are delivered alone
    SECTIONS = "sections"  # each section before its first delivery
    MARKS = "marks"  # each message before it is with its handler


@dataclass(frozen=True, slots=True)
class TryNote:
    """How a try delivers, written to disk before it: what its journals will be worth when it has ended.

    :param machine: where all its processes run, as ``platform.machine()`` names it; empty: on several.
    """

    machine: str
    forced: Forced = Forced.NOTHING

    def told(self) -> str:
        """Return the text of the note."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a note; None where there is none, or it was not finished: no delivery had begun."""
        try:
            told = json.loads(path.read_text())
            return cls(str(told["machine"]), Forced(told["forced"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


# While it runs


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
        for name in sorted(_names(self._folder)):
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
    return number & 0xFFFFFFFF if number >> 32 == MAGIC else None


def _counted(words: np.ndarray[tuple[int], np.dtype[np.int32]]) -> tuple[Progress, bool]:
    states = np.minimum(words & STATE_MASK, max(State))
    committed = int(np.count_nonzero((states == State.COMMITTED) | (states == State.CARRIED)))
    settled = int(np.count_nonzero(_SETTLED[states]))
    return Progress(committed, settled - committed, int(attempts_of(words).sum())), settled == len(words)


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(".journal") and not name.startswith(".")]  # noqa: PTH208  (names only)
    except OSError:
        return []
