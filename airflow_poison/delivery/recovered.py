"""What the journals of earlier tries say: which messages are settled, and how many attempts the others have had.

Of a damaged file, what is lost counts for nothing, and the log says so. What is there and may not be read is an error: it can be repaired, and
forgetting it would deliver again what was settled.

It also says which messages a crash is attributed to when everything dies. A try is the work of one holder of a claim; its journals lie in one folder.
When it ends with

* **one** transaction open, the message in flight is charged with a crash (its batch with a rollback, spec WCF-41);
* **several** open, no message is charged: a broker that is started again rolls open transactions back without counting. The messages that were
  in flight are *suspects*. They are delivered alone, so the next death has one in flight. That one is charged, for the earlier deaths in
  which it was a suspect, too.

A **batch of several** that was with a handler is a transaction, too, but none of its messages was alone: none is charged for it. Its words say
that they are suspected, and the next holder hands them on in smaller pieces (``delivery.journal``).

A machine that is lost takes with it what its kernel had not written to disk yet. What its journals say to have happened has happened, but
marks of messages in flight may be old, so none is charged; only what was forced to disk shows which message was alone with the handler.
Everything is computed again by each holder, from all folders in order: each comes to the same words.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

import numpy as np

from airflow_poison.delivery import platform
from airflow_poison.delivery.failurelog import FailureLog, FailureReader, LoggedEffect, Rollback
from airflow_poison.delivery.journal import (
    COUNT_MASK,
    IS_SETTLED,
    STATE_MASK,
    MessageState,
    OpenTransaction,
    attempts_of,
    counted,
    doubt_batches,
    left_open,
    pending,
    release,
    rows_beside,
    sections,
    settle,
    state_of,
)
from airflow_poison.delivery.printed import last_output
from airflow_poison.delivery.returned import Records, ReturnedBy, ReturnedRows, mapped
from airflow_poison.values.errors import ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind, origin
from airflow_poison.values.machine import PRIVATE, private

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.delivery.session import BatchReport

log = logging.getLogger(__name__)


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

    lookup_ids: NDArray[np.int64] = field(default_factory=np.empty(0, np.int64).copy)
    words: NDArray[np.int32] = field(default_factory=np.empty(0, np.int32).copy)
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

    def returned_by(self, batch: pa.RecordBatch, report: BatchReport) -> dict[str, list[ReturnedBy]]:
        """Return the rows that messages of a batch had returned before it was delivered, by folder of the journals.

        :param report: what became of the batch: what was delivered again, whatever came of it, has not returned them.
        """
        found: dict[str, list[ReturnedBy]] = {}
        if not self.returned.table.shape[1]:
            return found
        ids = batch.column("lookup_id").to_numpy(zero_copy_only=False)
        before = (self.words_for(ids) & STATE_MASK == MessageState.CARRIED) & (report.words & STATE_MASK == MessageState.COMMITTED)
        before &= ~np.isin(ids, [lookup_id for each in report.returned for lookup_id in each.lookup_ids])
        for path, returned in self.returned.read(ids[before]):
            found.setdefault(os.path.dirname(path), []).append(returned)  # noqa: PTH120  (a plain string)
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
            for effect in self.effects:
                texts.append_logged(effect)
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
            warn_of_damage(path, f"{reader.unreadable} line(s) of failures are lost")
        return Texts(failures, reader.halts, frozenset(late), tuple(reader.effects))
    return Texts({}, {})


# Damaged files


def warn_of_damage(path: Path, what: str) -> None:
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
            warn_of_damage(self._path, "it is a folder")
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


# Attribution

# What one try left in its journal folder


ALONE = "alone"
"""The partition of messages that are delivered alone, before the others: each is a section of its own, and forced to disk."""
BEGUN = "begun"
"""The name of the note beside the journal folder (``TryNote``)."""
_POLL_SECONDS = 0.05


class ReadSection(NamedTuple):
    """One section of a journal.

    :param path: of the journal.
    :param keeps_rows: what its committed messages returned is in the file beside the journal.
    """

    ids: NDArray[np.int64]
    words: NDArray[np.int32]
    path: Path
    keeps_rows: bool = False

    @property
    def alone(self) -> bool:
        """Whether its messages were delivered alone, before the others."""
        return self.path.name.startswith(f"{ALONE}-")


class Open(NamedTuple):
    """The open messages of a section that no pass has taken over.

    :param section: its place in the try.
    :param rows: of the messages that were in flight.
    :param transactions: how many were open.
    :param chargeable: whether there is a message among them that can be charged: there is none in a batch of several.
    """

    section: int
    rows: tuple[int, ...]
    transactions: int
    chargeable: bool = True


@dataclass(frozen=True, slots=True)
class Left:
    """What a try left, in the order in which its journals were begun."""

    sections: list[ReadSection]
    texts: Texts

    def doubt_batches(self) -> None:
        """Give back the batches that a lost machine left open."""
        for section in self.sections:
            doubt_batches(section.words)

    def opens(self) -> list[Open]:
        """Return what was open when the try ended; what a later attempt of the same task has counted and gone on with is not."""
        found = [(place, left_open(section.words)) for place, section in enumerate(self.sections)]
        batches = [self._open_batch(place, left) for place, left in found if left.open_batch]
        found = [(place, left) for place, left in found if left.in_flight or (left.held and not left.committed)]
        if not found:
            return [each for each in batches if each.transactions]
        further = self._further({int(self.sections[place].ids[row]) for place, left in found for row in (*left.in_flight, *left.held)})
        opens = [*batches, *(self._open(place, left, further) for place, left in found)]
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

    def _open_batch(self, place: int, left: OpenTransaction) -> Open:
        """Return an open batch; none where a later attempt of the same task has taken its messages over."""
        ids = self.sections[place].ids[list(left.open_batch)]
        taken_over = any(np.isin(ids, later.ids).any() for later in self.sections[place + 1 :])
        return Open(place, (), 0 if taken_over else 1, chargeable=False)


def read_try(folder: Path, deadline: float, partition: str | None = None) -> Left:
    """Read the journals of a folder.

    :param partition: only messages of this partition; None: all.
    :param deadline: until when to wait for journals whose writers still live, monotonic seconds.
    :raises ServerSessionError: a writer still lives then, or a journal is there and cannot be read.
    """
    found, texts = list[ReadSection](), Texts({}, {})
    for path in sorted(journal_paths(folder, f"{partition or '*'}-*.journal"), key=_begun_at):
        content = _read_when_quiet(path, deadline)
        texts = texts.followed_by(texts_of(path.with_suffix(".log")))
        found += (ReadSection(section.ids, section.words, path, section.keeps_rows) for section in sections(content, partial(warn_of_damage, path)))
    return Left(found, texts)


def dead_with_work(folder: Path, but: str) -> list[str]:
    """Return the journals of other partitions whose writers have died with something open."""
    others = [path for path in journal_paths(folder, "*-*.journal") if not path.name.startswith(f"{but}-")]
    return [path.name for path in others if _left_work(path)]


def is_quiet(path: Path) -> bool:
    """Whether no process can write to a journal any more."""
    with path.open("rb") as file:
        return _is_quiet(file)


def _left_work(path: Path) -> bool:
    with ReadingJournal(path), path.open("rb") as file:
        return _is_quiet(file) and any(left.in_flight or left.open_batch for left in (left_open(words) for _, words, _ in sections(file.read())))
    return False


def _begun_at(path: Path) -> tuple[str, str]:
    partition, _, begun = path.name.partition("-")
    return begun, partition


def _is_quiet(file: BinaryIO) -> bool:
    """Whether no process can write to a journal any more."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
            raise
        return False
    return True


def _read_when_quiet(path: Path, deadline: float) -> bytes:
    with ReadingJournal(path), path.open("rb") as file:
        while not _is_quiet(file):
            if time.monotonic() >= deadline:
                raise ServerSessionError(
                    f"The attempt journal {str(path)!r} still has a living writer: an earlier task attempt has not ended. "
                    "Its outcomes are needed before these messages are delivered again; end that process, then run the task again."
                )
            time.sleep(_POLL_SECONDS)
        return file.read()
    return b""


# The note beside the journals


class Forced(StrEnum):
    """Which parts of a try's journals are forced to disk."""

    NOTHING = "nothing"  # but the journal of messages that are delivered alone
    SECTIONS = "sections"  # each section before its first delivery
    SHARED = "shared"  # nothing, but other nodes see each section before its first delivery
    MARKS = "marks"  # each message before it is with its handler


@dataclass(frozen=True, slots=True)
class TryNote:
    """How a try delivers, written to disk before it: what its journals will be worth when it has ended.

    :param machine: where all its processes run, as ``platform.machine()`` names it; empty: on several.
    :param node: names the folder in which its journals stay, where only its own machine has that; empty: all users of the table share it.
    """

    machine: str
    forced: Forced = Forced.NOTHING
    node: str = ""

    def to_json(self) -> str:
        """Return the text of the note."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a note; None where there is none, or it was not finished: no delivery had begun."""
        try:
            record = json.loads(path.read_text())
            return cls(str(record["machine"]), Forced(record["forced"]), str(record.get("node", "")))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


# The messages that its death is charged to


KILLED = Failure(FailureKind.CRASH, "killed", "Every process of the task ended while this message was with the handler.")
INTERRUPTED = Failure(FailureKind.CRASH, "killed", "Every process of the task ended while the transaction of this message was open.")
PATIENCE = timedelta(seconds=60)
MOST_UNEXPLAINED = 2
"""From so many tries on that ended on a lost machine, without a known cause, journals are forced to disk."""


@dataclass(frozen=True, slots=True)
class ClaimHistory:
    """What the next try learns from the earlier tries of a claim.

    :param alone: lookup ids of messages to deliver alone: in flight when a whole try died, and nothing has become of them since; ascending.
    :param careful: journals were lost with machines so often that this try forces its own to disk.
    :param deaths: at how many of these deaths each of them was in flight.
    :param outdated: some of the suspects were found in journals whose marks may be old.
    """

    recovered: RecoveredAttempts
    alone: tuple[int, ...] = ()
    careful: bool = False
    outdated: bool = False
    deaths: Mapping[int, int] = field(default_factory=dict)


def read_history(folders: Iterable[Path], wait: timedelta = PATIENCE, node: str = "") -> ClaimHistory:
    """Read the journal folders of a claim's earlier holders, oldest first.

    :param wait: how long to wait for journals whose writers still live, at least zero.
    :param node: names the folder in which journals stay on this machine, as ``TryNote`` has it.
    :raises ServerSessionError: a writer still lives when the time is over.
    """
    deadline, attribution, here = time.monotonic() + wait.total_seconds(), _Attribution(), (platform.machine(), node)
    for folder in folders:
        begun = TryNote.read(folder.parent / BEGUN)
        attribution.add(read_try(folder, deadline), begun, elsewhere=begun is not None and (begun.machine, begun.node) != here)
    careful = attribution.careful or len(attribution.unexplained) >= MOST_UNEXPLAINED
    return ClaimHistory(attribution.recovered, tuple(sorted(attribution.counted)), careful, attribution.outdated, dict(attribution.deaths))


def read_journals(folders: Iterable[Path], wait: timedelta = PATIENCE) -> RecoveredAttempts:
    """Return what these folders say of messages, each the journals of one try on this machine."""
    deadline, attribution = time.monotonic() + wait.total_seconds(), _Attribution()
    for folder in folders:
        attribution.add(read_try(folder, deadline))
    return attribution.recovered


def read_partition(folder: Path, partition: str) -> RecoveredAttempts:
    """Return what earlier attempts of one task of this very try have done (Spark runs a task again when its executor is lost).

    :raises ServerSessionError: others have died with it, so the cause is not known; or a writer still lives.
    """
    left = read_try(folder, time.monotonic() + PATIENCE.total_seconds(), partition)
    opens = left.opens()
    chargeable = any(each.chargeable for each in opens)
    together = dead_with_work(folder, partition) if chargeable else []
    if chargeable and (sum(each.transactions for each in opens) > 1 or together):
        raise ServerSessionError(
            "Several messages were with their handlers when tasks of this pass died, and it is not known yet which of them did it. "
            "Nothing is lost, no message is charged: run the Airflow task again, it delivers them one at a time."
        )
    attribution, begun = _Attribution(), TryNote.read(folder.parent / BEGUN)
    if begun is not None and begun.machine != platform.machine():
        left.doubt_batches()
    attribution.add(left)
    return attribution.recovered


@dataclass(slots=True)
class _Attribution:
    """The judgements so far.

    :ivar deaths: uncharged whole deaths at which a message was in flight, by lookup id.
    :ivar counted: the attempts that a message had when it was last in flight at one; it is looked at until it has more, or is settled.
    :ivar unexplained: the suspects of each try that ended on a lost machine, until one of them is charged.
    :ivar in_sections: the suspects of each try of which only sections are known, until one of them is charged: no other one was the cause.
    """

    recovered: RecoveredAttempts = field(default_factory=RecoveredAttempts)
    deaths: Counter[int] = field(default_factory=Counter)
    counted: dict[int, int] = field(default_factory=dict)
    unexplained: list[frozenset[int]] = field(default_factory=list)
    in_sections: list[frozenset[int]] = field(default_factory=list)
    careful: bool = False
    outdated: bool = False

    def add(self, left: Left, begun: TryNote | None = None, *, elsewhere: bool = False) -> None:
        """Judge one more try.

        :param elsewhere: it did not run on this machine alone: some of what it journalled may be lost.
        """
        if elsewhere:
            left.doubt_batches()
        judged = _TryAttribution(left, self.deaths)
        if begun is not None and begun.forced not in {Forced.NOTHING, Forced.SHARED}:
            self.careful = True
        if begun is not None and elsewhere and begun.forced is not Forced.MARKS:
            self.outdated = True
            every = begun.forced in {Forced.SECTIONS, Forced.SHARED}
            if judged.judge_by_forced_sections(every=every):
                self.in_sections.append(judged.suspects)
            elif begun.forced is Forced.NOTHING:
                self.unexplained.append(judged.suspect_by_old_marks())
        else:
            judged.judge_by_marks()
        self.recovered = self.recovered.merged(judged.recovered(self.recovered))
        self.deaths.update(judged.suspects)
        self.counted |= {lookup_id: attempts_of(value) for lookup_id, value in self._words_of(judged.suspects).items()}
        if judged.charged is not None:
            del self.deaths[judged.charged]
            self.counted[judged.charged] = attempts_of(self.recovered.word_of(judged.charged))
            self.unexplained = [suspects for suspects in self.unexplained if judged.charged not in suspects]
            for suspects in [suspects for suspects in self.in_sections if judged.charged in suspects]:
                self.in_sections.remove(suspects)
                self.deaths.subtract(suspects & self.deaths.keys())
        for lookup_id, value in self._words_of(self.counted).items():
            if IS_SETTLED[value & STATE_MASK] or attempts_of(value) > self.counted[lookup_id]:
                del self.counted[lookup_id], self.deaths[lookup_id]

    def _words_of(self, lookup_ids: Collection[int]) -> dict[int, int]:
        """Return the words that these messages begin with: many at once, where units of a transformation were in flight."""
        ids = np.fromiter(lookup_ids, np.int64, len(lookup_ids))
        return dict(zip(ids.tolist(), self.recovered.words_for(ids).tolist(), strict=True))


class _TryAttribution:
    """On one try.

    :param deaths: uncharged whole deaths before it, by lookup id.
    :ivar charged: who is charged with this try's death.
    :ivar suspects: who may have caused it.
    """

    def __init__(self, left: Left, deaths: Counter[int]) -> None:
        self._left, self._deaths = left, deaths
        self._failures: dict[int, Failure] = {}
        self.charged: int | None = None
        self.suspects: frozenset[int] = frozenset()

    def judge_by_marks(self) -> None:
        """Judge by the marks of messages in flight: they are true."""
        opens = self._left.opens()
        if sum(each.transactions for each in opens) == 1:
            self._charge_open(opens[0].section)
        else:
            self.suspects = self._in_flight(opens)

    def judge_by_forced_sections(self, *, every: bool) -> bool:
        """Judge by the last section of each task that was forced to disk; False when there is none, or all of them are settled.

        :param every: all sections were; else only sections of messages that were delivered alone, and none if others came after them.
        """
        sections = self._left.sections
        if not sections or not (every or all(section.alone for section in sections)):
            return False
        last = {section.path: place for place, section in enumerate(sections)}.values()
        opens = {place: rows for place in last if len(rows := pending(sections[place].words))}
        only = next(iter(opens), 0)
        if len(opens) == 1 and len(sections[only].ids) == 1:
            words = sections[only].words
            words[0] = int(words[0]) & ~STATE_MASK | MessageState.IN_FLIGHT
            self._charge_open(only)
        else:
            self.suspects = frozenset(chain.from_iterable(sections[place].ids[rows].tolist() for place, rows in opens.items()))
        return bool(opens)

    def suspect_by_old_marks(self) -> frozenset[int]:
        """Suspect the messages in flight when the marks were written."""
        self.suspects = self._in_flight(self._left.opens())
        return self.suspects

    def recovered(self, earlier: RecoveredAttempts) -> RecoveredAttempts:
        """Return what the try says of its messages, nothing open any more.

        :param earlier: what earlier tries say.
        """
        left = self._left
        for section in left.sections:
            release(section.words)
        returned = _returned(left.sections, earlier)
        ids = np.concatenate([np.empty(0, np.int64), *(section.ids for section in left.sections)])
        words = np.concatenate([np.empty(0, np.int32), *(section.words for section in left.sections)])
        texts = Texts({**left.texts.failures, **self._failures}, left.texts.halts, effects=left.texts.effects)
        return replace(merged(ids, words, texts, len(left.texts.timeouts)), returned=returned)

    def _in_flight(self, opens: Iterable[Open]) -> frozenset[int]:
        return frozenset(int(self._left.sections[each.section].ids[row]) for each in opens for row in each.rows)

    def _charge_open(self, section: int) -> None:
        ids, words, path, _ = self._left.sections[section]
        found = settle(words)
        what = KILLED if found.in_flight else INTERRUPTED
        charged = (int(ids[row]) for row in found.culprits)
        self._failures |= {lookup_id: replace(what, trace=last_output(path, lookup_id)) for lookup_id in charged}
        for row in found.in_flight:
            self.charged = int(ids[row])
            for _ in range(self._deaths[self.charged]):
                words[row] = counted(int(words[row]), MessageState.CRASHED, crash=True)


def _returned(found: Iterable[ReadSection], earlier: RecoveredAttempts) -> ReturnedRows:
    """Return what committed messages returned. A message whose record was lost with a machine is taken back: it is delivered again.

    One that an earlier try has committed has its record there; the words of this try that say so may be all that is left of it.
    """
    returned = ReturnedRows()
    for path, of_journal in groupby(found, lambda section: section.path):
        records = Records.of(rows_beside(path))
        for section in of_journal:
            committed = np.flatnonzero(section.words & STATE_MASK == MessageState.COMMITTED)
            words = section.words[committed]
            rows, there = records.of_committed(section.ids[committed], attempts_of(words))
            if section.keeps_rows:
                section.words[committed[~there]] = words[~there] & ~STATE_MASK | MessageState.UNTOUCHED
            returned = returned.merged(rows)
            early = np.flatnonzero(section.words & STATE_MASK == MessageState.CARRIED)  # by an earlier try, or in this one before its turn
            returned = returned.merged(records.of_committed(section.ids[early], attempts_of(section.words[early]))[0])
            if section.keeps_rows:
                known = earlier.words_for(section.ids[early]) & STATE_MASK == MessageState.CARRIED
                lost = early[~known & ~np.isin(section.ids[early], returned.table[0])]
                section.words[lost] = section.words[lost] & ~STATE_MASK | MessageState.UNTOUCHED
    return returned
