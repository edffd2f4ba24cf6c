"""How far a pass is: read by its driver from the journals that its tasks write, at the cost of the batches that are under way."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from airflow_poison.core.delivery.sessions.journalfile import MAGIC
from airflow_poison.core.delivery.sessions.tries import ALONE
from airflow_poison.core.delivery.sessions.words import IS_SETTLED, STATE_MASK, State, attempts_of

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = 16
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
        words = np.frombuffer(os.pread(descriptor, 4 * messages, offset + _HEADER + 8 * messages), np.int32)
        found, is_over = _counted(words)
        offset += _HEADER + 8 * messages + (4 * messages + 7) // 8 * 8
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
