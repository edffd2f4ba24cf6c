"""What the journals of earlier tries say: which messages are settled, and how many attempts the others have had.

Of a damaged file, what is lost counts for nothing, and the log says so. What is there and may not be read is an error: it can be repaired, and
forgetting it would deliver again what was settled.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from airflow_poison.delivery.failurelog import FailureLog, FailureReader, Rollback
from airflow_poison.delivery.journal import COUNT_MASK, STATE_MASK, MessageState, attempts_of, state_of
from airflow_poison.delivery.returned import ReturnedRows, mapped
from airflow_poison.values.errors import ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind, origin
from airflow_poison.values.machine import PRIVATE, private

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from types import TracebackType

    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.delivery.failurelog import LoggedEffect
    from airflow_poison.delivery.session import BatchReport


@dataclass(frozen=True, slots=True)
class RecoveredAttempts:
    """Words of messages by lookup id.

    :param lookup_ids: sorted, each once.
    :param words: one per lookup id; never in flight or held.
    :param failures: the last failure by lookup id, of messages that are not committed.
    :param halts: the details of the halts that messages caused, by lookup id.
    :param timeouts: how many of the attempts took too long; not saved.
    :param effects: what messages did in their conversations, oldest first.
    :param returned: the rows that committed messages returned; of others it may say something, too.
    """

    lookup_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    words: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    failures: dict[int, Failure] = field(default_factory=dict)
    halts: dict[int, Mapping[str, str]] = field(default_factory=dict)
    timeouts: int = 0
    effects: tuple[LoggedEffect, ...] = ()
    returned: ReturnedRows = field(default_factory=ReturnedRows)

    def words_for(self, lookup_ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the words that these messages begin with: zero where nothing is known, ``CARRIED`` where committed.

        Where a delivery ended its process, that was another process: what it means for an endpoint is lost, its count is kept.
        """
        found = np.zeros(len(lookup_ids), np.int32)
        if not len(self.lookup_ids):
            return found
        places = np.searchsorted(self.lookup_ids, lookup_ids)
        places[places == len(self.lookup_ids)] = 0
        hits = self.lookup_ids[places] == lookup_ids
        found[hits] = self.words[places[hits]]
        states = found & STATE_MASK
        found[states == MessageState.COMMITTED] += MessageState.CARRIED - MessageState.COMMITTED
        died = np.isin(states, (MessageState.CRASHED, MessageState.TIMED_OUT))
        found[died] = found[died] & COUNT_MASK | MessageState.UNTOUCHED
        return found

    def merged(self, other: RecoveredAttempts) -> RecoveredAttempts:
        """Return what both say together, the further word of each message."""
        timeouts, effects = self.timeouts + other.timeouts, self.effects + other.effects
        if not len(other.lookup_ids):
            return replace(self, timeouts=timeouts, effects=effects)
        both = np.concatenate([self.lookup_ids, other.lookup_ids]), np.concatenate([self.words, other.words])
        found = merged(*both, Texts({**self.failures, **other.failures}, {**self.halts, **other.halts}, effects=effects), timeouts)
        return replace(found, returned=self.returned.merged(other.returned))

    def returned_by(self, batch: pa.RecordBatch, report: BatchReport) -> dict[str, dict[int, bytes]]:
        """Return the rows that messages of a batch had returned before it was delivered: by folder of the journals, and lookup id.

        :param report: what became of the batch: what was delivered again, whatever came of it, has not returned them.
        """
        found: dict[str, dict[int, bytes]] = {}
        if not self.returned.table.shape[1]:
            return found
        ids = batch.column("lookup_id").to_numpy(zero_copy_only=False)
        before = (self.words_for(ids) & STATE_MASK == MessageState.CARRIED) & (report.words & STATE_MASK == MessageState.COMMITTED)
        for path, number, rows in self.returned.read(ids[before]):
            if number not in report.returned:
                found.setdefault(os.path.dirname(path), {})[number] = rows  # noqa: PTH120  (a plain string)
        return found

    def without(self, fingerprints: Collection[str]) -> tuple[RecoveredAttempts, int]:
        """Return the same without the attempts of messages whose last failure has one of these fingerprints; and how many messages that are.

        What became of them in these tries is taken back: they are as they came. What has committed stays.
        """
        alike = {lookup_id for lookup_id, failure in self.failures.items() if origin(failure) in fingerprints}
        if not alike:
            return self, 0
        words = np.where(np.isin(self.lookup_ids, np.fromiter(alike, np.int64, len(alike))), 0, self.words).astype(np.int32)
        failures = {lookup_id: failure for lookup_id, failure in self.failures.items() if lookup_id not in alike}
        halts = {lookup_id: details for lookup_id, details in self.halts.items() if lookup_id not in alike}
        return replace(self, words=words, failures=failures, halts=halts), len(alike)

    def word_of(self, lookup_id: int) -> int:
        """Return the word that one message begins with."""
        return int(self.words_for(np.array([lookup_id], np.int64))[0])

    def save(self, path: Path) -> None:
        """Write it as two rows of int64, the failures beside it."""
        with open(path, "wb", opener=private) as file:
            np.stack([self.lookup_ids, self.words.astype(np.int64)]).tofile(file)
        self.returned.save(_rows_of(path))
        descriptor = os.open(_log_of(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
        try:
            texts = FailureLog(descriptor)
            for lookup_id, failure in self.failures.items():
                texts.append(Rollback(0, 0, lookup_id, 0, failure))
            for lookup_id, details in self.halts.items():
                texts.append_halt(lookup_id, details)
            for told in self.effects:
                texts.append_told(told)
        finally:
            os.close(descriptor)

    @staticmethod
    def files(path: Path) -> tuple[Path, ...]:
        """Return the files that ``save`` wrote; the last one lists those with the rows that were returned, as JSON."""
        return path, _log_of(path), *(path.with_name(f"{_rows_of(path).name}.{kind}") for kind in ("table", "json"))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Map what ``save`` wrote."""
        table = mapped(path, 2)
        texts = texts_of(_log_of(path))
        returned = ReturnedRows.load(_rows_of(path))
        return cls(table[0], table[1].astype(np.int32), texts.failures, texts.halts, effects=texts.effects, returned=returned)


class Texts(NamedTuple):
    """What logs say, by lookup id: the last failures, and the details of halts.

    :param timeouts: lookup ids and counted rollbacks before it, of each delivery that took too long.
    :param effects: what messages did in their conversations, oldest first.
    """

    failures: dict[int, Failure]
    halts: dict[int, Mapping[str, str]]
    timeouts: frozenset[tuple[int, int]] = frozenset()
    effects: tuple[LoggedEffect, ...] = ()

    def followed_by(self, later: Texts) -> Texts:
        """Return the words of both, the last one of each message."""
        failures, halts = {**self.failures, **later.failures}, {**self.halts, **later.halts}
        return Texts(failures, halts, self.timeouts | later.timeouts, self.effects + later.effects)


def merged(ids: NDArray[np.int64], words: NDArray[np.int32], texts: Texts, timeouts: int = 0) -> RecoveredAttempts:
    """Return what words of messages say together, in any order: committed before ended, ended before more attempts."""
    states = words & STATE_MASK
    words = np.where(states == MessageState.CARRIED, words - MessageState.CARRIED + MessageState.COMMITTED, words).astype(np.int32)
    rank = (words >> 8).astype(np.int64) & 0xFFF
    rank += np.where(np.isin(states, (MessageState.ENDED, MessageState.HALTED)), 1 << 20, 0)
    rank += np.where(np.isin(states, (MessageState.COMMITTED, MessageState.CARRIED)), 1 << 21, 0)
    order = np.lexsort((words, rank, ids))
    ids, words = ids[order], words[order]
    last = np.ones(len(ids), bool)
    last[:-1] = ids[1:] != ids[:-1]
    ids, words = ids[last], words[last]
    known, kept = RecoveredAttempts(ids, words), {}
    for lookup_id, failure in texts.failures.items():
        value = known.word_of(lookup_id)
        if state_of(value) is not MessageState.CARRIED and (attempts_of(value) > 0 or state_of(value) is not MessageState.UNTOUCHED):
            kept[lookup_id] = failure
    return replace(known, failures=kept, halts=texts.halts, timeouts=timeouts, effects=texts.effects)


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + ".log")


def _rows_of(path: Path) -> Path:
    return path.with_name(path.name + ".rows")


def texts_of(path: Path) -> Texts:
    """Read a log; nothing where there is none. Raises ServerSessionError for one that this user may not read."""
    with ReadingJournal(path), path.open("rb") as file:
        reader = FailureReader(file.fileno(), str(path))
        failures: dict[int, Failure] = {}
        late: set[tuple[int, int]] = set()
        for entry in reader.news():
            failures[entry.lookup_id] = entry.failure
            if entry.failure.kind is FailureKind.TIMEOUT and not entry.innocent:
                late.add((entry.lookup_id, entry.attempts))
        if reader.unreadable:
            tell_damage(path, f"{reader.unreadable} line(s) of failures are lost")
        return Texts(failures, reader.halts, frozenset(late), tuple(reader.effects))
    return Texts({}, {})


# Damaged files


log = logging.getLogger(__name__)


def tell_damage(path: Path, what: str) -> None:
    """Log which parts of a journal, or of the texts beside it, cannot be read."""
    log.warning(
        "The attempt journal %s is damaged: %s. What it said there is not known; messages of which nothing else is known are delivered again.",
        path,
        what,
    )


class ReadingJournal:
    """Look into a file or folder of journals; what is gone, and a folder in place of a file, hold nothing.

    Raises ServerSessionError for what cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return True
        if isinstance(error, IsADirectoryError):
            tell_damage(self._path, "it is a folder")
            return True
        if isinstance(error, OSError):
            raise ServerSessionError(
                f"The attempt journal {str(self._path)!r} cannot be read: {error.strerror or error}. Nothing was delivered. Give this user the right "
                "to read it, then run the task again; if it is lost for good, remove it: its messages are delivered again then, settled ones too."
            ) from error
        return False


def journal_paths(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder of journals that match. A folder that may not be listed is an error (a glob passes over it)."""
    with ReadingJournal(folder):
        return [folder / name for name in os.listdir(folder) if fnmatchcase(name, pattern)]  # noqa: PTH208  (names only)
    return []
