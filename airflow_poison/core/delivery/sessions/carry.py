"""What the journals of earlier tries say: which messages are settled, and how many attempts the others have had."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from airflow_poison.core.delivery.sessions.failurelog import FailureLog, FailureReader, Rollback
from airflow_poison.core.delivery.sessions.journalfile import sections
from airflow_poison.core.delivery.sessions.lastoutput import last_output
from airflow_poison.core.delivery.sessions.words import COUNT_MASK, STATE_MASK, State, attempts_of, settle, state_of
from airflow_poison.core.errors import ServerSessionError
from airflow_poison.core.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_POLL_SECONDS = 0.05
_DAMAGED = "The attempt journal %s is damaged: %s. What it said there is not known; messages of which nothing else is known are delivered again."
log = logging.getLogger(__name__)
KILLED = Failure(FailureKind.CRASH, "killed", "Every process of the task ended while this message was with the handler.")
INTERRUPTED = Failure(FailureKind.CRASH, "killed", "Every process of the task ended while the transaction of this message was open.")


def _no_ids() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


def _no_words() -> NDArray[np.int32]:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Carry:
    """Words of messages by lookup id.

    :param lookup_ids: sorted, each once.
    :param words: one per lookup id; never in flight or held.
    :param failures: the last failure by lookup id, of messages that are not committed.
    :param halts: the details of the halts that messages caused, by lookup id.
    """

    lookup_ids: NDArray[np.int64] = field(default_factory=_no_ids)
    words: NDArray[np.int32] = field(default_factory=_no_words)
    failures: dict[int, Failure] = field(default_factory=dict)
    halts: dict[int, Mapping[str, str]] = field(default_factory=dict)

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
        found[states == State.COMMITTED] += State.CARRIED - State.COMMITTED
        died = np.isin(states, (State.CRASHED, State.TIMED_OUT))
        found[died] = found[died] & COUNT_MASK | State.UNTOUCHED
        return found

    def merged(self, other: Carry) -> Carry:
        """Return what both say together, the further word of each message."""
        if not len(other.lookup_ids):
            return self
        both = np.concatenate([self.lookup_ids, other.lookup_ids]), np.concatenate([self.words, other.words])
        return _merged(*both, _Texts({**self.failures, **other.failures}, {**self.halts, **other.halts}))

    def save(self, path: Path) -> None:
        """Write it as two rows of int64 (``.npy``, mappable), the failures beside it."""
        with path.open("wb") as file:
            np.save(file, np.stack([self.lookup_ids, self.words.astype(np.int64)]))
        descriptor = os.open(_log_of(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            texts = FailureLog(descriptor)
            for lookup_id, failure in self.failures.items():
                texts.append(Rollback(0, 0, lookup_id, 0, failure))
            for lookup_id, details in self.halts.items():
                texts.append_halt(lookup_id, details)
        finally:
            os.close(descriptor)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Map what ``save`` wrote."""
        table = np.load(path, mmap_mode="r")
        texts = _texts(_log_of(path))
        return cls(table[0], table[1].astype(np.int32), texts.failures, texts.halts)


class _Texts(NamedTuple):
    """What logs say, by lookup id: the last failures, and the details of halts."""

    failures: dict[int, Failure]
    halts: dict[int, Mapping[str, str]]


def read_journals(folders: Iterable[Path], wait: timedelta = timedelta(seconds=60), partition: str | None = None) -> Carry:
    """Merge all journals in these folders: committed before ended, ended before more attempts.

    A message that a dead process left in flight has had one more attempt, a crash.

    :param partition: only the journals of this partition; None: all.
    :param wait: how long to wait for journals whose writers still live, at least zero.
    :raises ServerSessionError: a writer still lives when the time is over, or a journal is there and cannot be read.

    What is damaged counts as far as it can be read; the log says what cannot, and that its messages are delivered again.
    """
    deadline = time.monotonic() + wait.total_seconds()
    ids, words, texts = [_no_ids()], [_no_words()], _Texts({}, {})
    for folder in folders:
        for path in _journals(folder, f"{partition or '*'}-*.journal"):
            content = _read_when_quiet(path, deadline)
            failures, halts = _texts(path.with_suffix(".log"))
            texts.failures.update(failures)
            texts.halts.update(halts)
            for section_ids, section_words in sections(content, partial(log.warning, _DAMAGED, path)):
                found = settle(section_words)
                what = KILLED if found.in_flight else INTERRUPTED
                charged = (int(section_ids[row]) for row in found.culprits)
                texts.failures.update({number: replace(what, trace=last_output(path, number)) for number in charged})
                ids.append(section_ids)
                words.append(section_words)
    return _merged(np.concatenate(ids), np.concatenate(words), texts)


def _merged(ids: NDArray[np.int64], words: NDArray[np.int32], texts: _Texts) -> Carry:
    states = words & STATE_MASK
    words = np.where(states == State.CARRIED, words - State.CARRIED + State.COMMITTED, words).astype(np.int32)
    rank = (words >> 8).astype(np.int64) & 0xFFF
    rank += np.where(np.isin(states, (State.ENDED, State.HALTED)), 1 << 20, 0)
    rank += np.where(np.isin(states, (State.COMMITTED, State.CARRIED)), 1 << 21, 0)
    order = np.lexsort((words, rank, ids))
    ids, words = ids[order], words[order]
    last = np.ones(len(ids), bool)
    last[:-1] = ids[1:] != ids[:-1]
    ids, words = ids[last], words[last]
    known = Carry(ids, words)
    kept = {key: failure for key, failure in texts.failures.items() if _keeps_failure(known, key)}
    return Carry(ids, words, kept, texts.halts)


def _keeps_failure(carry: Carry, lookup_id: int) -> bool:
    value = int(carry.words_for(np.array([lookup_id], np.int64))[0])
    return state_of(value) is not State.CARRIED and (attempts_of(value) > 0 or state_of(value) is not State.UNTOUCHED)


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + ".log")


def _texts(path: Path) -> _Texts:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _Texts({}, {})
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        reader = FailureReader(descriptor)
        failures = {entry.lookup_id: entry.failure for entry in reader.news()}
        if reader.unreadable:
            log.warning(_DAMAGED, path, f"{reader.unreadable} line(s) of failures are lost")
        return _Texts(failures, reader.halts)
    except IsADirectoryError:
        log.warning(_DAMAGED, path, "it is a folder")
        return _Texts({}, {})
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)


def _journals(folder: Path, pattern: str) -> list[Path]:
    """Return the journals of a folder, sorted. A folder that cannot be listed is an error: what is in it would be done again."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  (a glob passes over folders that cannot be read)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error
    return sorted(folder / name for name in names if fnmatchcase(name, pattern))


def _unreadable(path: Path, error: OSError) -> ServerSessionError:
    return ServerSessionError(
        f"The attempt journal {str(path)!r} cannot be read: {error.strerror or error}. Nothing was delivered. Give this user the right to read it, "
        "then run the task again; if it is lost for good, remove it: its messages are delivered again then, those that were settled too."
    )


def _read_when_quiet(path: Path, deadline: float) -> bytes:
    try:
        return _read_unlocked(path, deadline)
    except IsADirectoryError:
        log.warning(_DAMAGED, path, "it is a folder")
        return b""
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_unlocked(path: Path, deadline: float) -> bytes:
    with path.open("rb") as file:
        while True:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                    raise
                if time.monotonic() >= deadline:
                    raise ServerSessionError(
                        f"The attempt journal {str(path)!r} still has a living writer: an earlier task attempt has not ended. "
                        "Its outcomes are needed before these messages are delivered again; end that process, then run the task again."
                    ) from error
                time.sleep(_POLL_SECONDS)
            else:
                return file.read()
