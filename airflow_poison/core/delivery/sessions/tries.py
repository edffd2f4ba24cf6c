"""What one try left in its journal folder: the sections of its journals, its texts, and the transactions that were open when it ended."""

from __future__ import annotations

import errno
import fcntl
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from airflow_poison.core.delivery.sessions import damaged
from airflow_poison.core.delivery.sessions.carry import Texts, texts_of
from airflow_poison.core.delivery.sessions.journalfile import sections
from airflow_poison.core.delivery.sessions.words import IS_SETTLED, STATE_MASK, attempts_of, left_open
from airflow_poison.core.errors import ServerSessionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    from airflow_poison.core.delivery.sessions.effects import Told
    from airflow_poison.core.delivery.sessions.words import OpenTransaction

ALONE = "alone"
"""The partition of messages that are delivered alone, before the others: each is a section of its own, and forced to disk."""
BEGUN = "begun"
"""The name of the note beside the journal folder (begun.py)."""
_POLL_SECONDS = 0.05


class Section(NamedTuple):
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

    sections: list[Section]
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
    found: list[Section] = []
    failures, halts, late = {}, {}, frozenset[tuple[int, int]]()
    effects: tuple[Told, ...] = ()
    for path in sorted(damaged.names(folder, f"{partition or '*'}-*.journal"), key=_begun_at):
        content = _read_when_quiet(path, deadline)
        texts = texts_of(path.with_suffix(".log"))
        failures.update(texts.failures)
        halts.update(texts.halts)
        late |= texts.timeouts
        effects += texts.effects
        found += (Section(ids, words, path) for ids, words in sections(content, partial(damaged.tell, path)))
    return Left(found, Texts(failures, halts, late, effects))


def dead_with_work(folder: Path, but: str) -> list[str]:
    """Return the journals of other partitions whose writers have died with something open."""
    return [path.name for path in _of_others(folder, but) if _left_work(path)]


def _of_others(folder: Path, partition: str) -> Iterable[Path]:
    return (path for path in damaged.names(folder, "*-*.journal") if not path.name.startswith(f"{partition}-"))


def _left_work(path: Path) -> bool:
    with damaged.Reading(path), path.open("rb") as file, _locked(file) as quiet:
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
    with damaged.Reading(path):
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
