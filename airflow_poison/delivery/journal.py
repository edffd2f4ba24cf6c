"""The attempt journal: a file that worker and child map shared, so that no death of any process forgets an attempt.

One file per task attempt, a section per Arrow batch::

    section   8 bytes   magic << 32 | number of messages   (stored last: an unfinished section does not exist)
              8         checksum of those and of the lookup ids
              8 n       lookup ids, int64
              4 n       words, int32, padded to 8

Words change one by one and have no checksum. A disk loses whole sectors, so a word counts when all words of its sector can be words.
What cannot be read counts for nothing: its messages are delivered again, and none is charged for it.

Where returned rows land in outputs, a file of what deliveries returned lies beside it (``returned.py``), and the section's magic says so: a
message counts as committed only if that file has what it returned, which may be nothing. A loss of power may take the one and leave the other.
Where messages are delivered at most once, it counts in any case.

Beside it lies a log of texts (failurelog.py). Both descriptors carry a shared lock (``flock``) that lives as long as any process
that may still write, and that is taken before the file gets its final name: who finds a journal can wait for its writers.

A word is ``crashes << 20 | attempts << 8 | state``. One word, because a kill between two stores would miscount.

Only the delivering process stores while it lives. Why a kill between any two stores never miscounts:

* Messages are received in row order, and what is returned goes back to its row. So while a row is open (in flight or held),
  no later row of the batch has been committed by an earlier transaction of this process; what an earlier *try* committed is
  marked ``CARRIED``, another state.
* **Commit.** The members of an open transaction are ``HELD``. The store that turns the *last* member into ``COMMITTED``
  decides; the others follow from the last to the first. A held word is therefore committed exactly when the first row behind the
  held ones (settled rows of earlier times skipped) is ``COMMITTED``.
* **Rollback.** A held word that is not committed belongs to a transaction that was or is being rolled back, and its rollback
  counts one attempt (spec WCF-41). The pass that finds it does what the process would have done: one attempt more, given back. So it does
  not matter how many members the process had reached. The culprit is ``IN_FLIGHT`` until its rollback is stored; found in flight
  it is charged with a crash.
* **Postpone** commits what the transaction had delivered before, as above, and then ends the message by one store.
* **Batches** (several messages in one call of the handler) have words of their own, for they commit in any order of rows. Their members are
  ``IN_BATCH`` while the handler has them. The store that turns the last member into ``DECIDED`` decides: whatever else is ``IN_BATCH`` in this
  section is committed then. The others become ``COMMITTED``, the decided one last. Only one batch of a section is open at a time. Without a
  decided member the batch is rolled back **uncounted**, because the cause is not known: its members become ``SUSPECTED`` and are handed on
  in small pieces, members of a small batch ``SUSPECTED_ALONE``, one by one. So each death narrows the search, in any process, and
  only a message that was in hand alone (``IN_FLIGHT``) is charged. Words of several tries say together what the most suspicious one says.
  When a machine is lost, words of different sectors may be of different ages: a decision counts then for its own word alone, and the others
  of its batch are delivered again.

Texts are appended to the failure log before the word that needs them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar, cast

import numpy as np

from airflow_poison.delivery import platform
from airflow_poison.delivery.platform import why
from airflow_poison.values.errors import ClaimLostError, ServerSessionError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.machine import PRIVATE, private

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Words


class MessageState(IntEnum):
    """What has become of a message so far."""

    UNTOUCHED = 0  # not with a handler; with attempts: given back and waiting
    IN_FLIGHT = 1  # with the handler now
    COMMITTED = 2  # the handler returned and its transaction is committed
    ENDED = 3  # rolled back for good, unreadable or postponed; the failure's kind says which
    HALTED = 4  # this message halted the endpoint
    CRASHED = 5  # its last delivery ended the process; waits for the next
    TIMED_OUT = 6  # its last delivery took too long; waits for the next
    HELD = 7  # the handler returned, the transaction is open
    CARRIED = 8  # committed by an earlier try (in journals only, reported as COMMITTED)
    IN_BATCH = 9  # with the handler now, in a batch of several
    DECIDED = 10  # the last member of a batch whose handler returned: all of the batch is committed
    SUSPECTED = 11  # the process ended while its batch was with the handler; next in a small batch
    SUSPECTED_ALONE = 12  # the process ended while its small batch was with the handler; next alone


STATE_MASK = 0xFF
COUNT_MASK = ~STATE_MASK
MAX_ATTEMPTS = 0xFFF
MAX_CRASHES = 0x7FF
ATTEMPTS_MASK = MAX_ATTEMPTS << 8
"""The bits of the attempts; all of them are set when there can be no more."""
ONE_ATTEMPT = 1 << 8
_ONE_CRASH = 1 << 20

Words = TypeVar("Words", int, "NDArray[np.int32]")

SETTLED = (MessageState.COMMITTED, MessageState.ENDED, MessageState.HALTED, MessageState.CARRIED)
"""States that no delivery follows."""
IS_SETTLED = tuple(number in SETTLED for number in range(STATE_MASK + 1))
"""The same, by the state's number: loops ask it for every message."""


SUSPECTS = (MessageState.SUSPECTED, MessageState.SUSPECTED_ALONE)
"""States of messages that were with a handler together with others when its process ended."""
SMALL_BATCH = 100
"""How many messages at most are handed on together when a process has ended with a larger batch; such a batch is small."""


def word(state: MessageState, attempts: int = 0, crashes: int = 0) -> int:
    """Return the word of a state and its counts."""
    return min(crashes, MAX_CRASHES) << 20 | min(attempts, MAX_ATTEMPTS) << 8 | state


def state_of(value: int) -> MessageState:
    """Return a word's state."""
    return MessageState(value & STATE_MASK)


def attempts_of(value: Words) -> Words:
    """Return a word's counted rollbacks, crashes and timeouts included."""
    return value >> 8 & MAX_ATTEMPTS


def crashes_of(value: Words) -> Words:
    """Return how many of a word's rollbacks were a crash or a timeout."""
    return value >> 20


def counted(value: Words, state: MessageState, *, crash: bool | NDArray[np.bool_] = False) -> Words:
    """Return the word after one more rollback; the counts stop at their largest value."""
    more = ONE_ATTEMPT * (attempts_of(value) < MAX_ATTEMPTS) + _ONE_CRASH * (crash & (crashes_of(value) < MAX_CRASHES))
    return cast("Words", value + more & COUNT_MASK | state)


def pending(words: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the rows that still have to be delivered."""
    return np.flatnonzero(~np.isin(words & STATE_MASK, SETTLED))


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What a dead process left open.

    :param in_flight: the rows that were with a handler; several where an endpoint has several server sessions.
    :param held: the rows whose handler had returned.
    :param committed: whether the held ones had been committed.
    :param batch: the rows of the batch of several that was with a handler, a decided one last.
    :param decided: whether the batch had been committed.
    """

    in_flight: tuple[int, ...]
    held: tuple[int, ...]
    committed: bool
    batch: tuple[int, ...] = ()
    decided: bool = False

    @property
    def open_batch(self) -> tuple[int, ...]:
        """The rows of a batch that was not committed."""
        return () if self.decided else self.batch

    @property
    def culprits(self) -> tuple[int, ...]:
        """The rows whose delivery ended a transaction, for the log; none when nothing is rolled back."""
        if self.in_flight or self.committed or not self.held:
            return self.in_flight
        return self.held[-1:]


def left_open(words: NDArray[np.int32]) -> OpenTransaction:
    """Read what a dead process left open in the words of one batch."""
    states = words & STATE_MASK
    held = np.flatnonzero(states == MessageState.HELD)
    flying = np.flatnonzero(states == MessageState.IN_FLIGHT)
    committed = False
    if len(held):
        behind = states[held[-1] + 1 :]
        behind = behind[~np.isin(behind, (MessageState.ENDED, MessageState.HALTED, MessageState.CARRIED))]
        committed = bool(len(behind)) and behind[0] == MessageState.COMMITTED
    decided = np.flatnonzero(states == MessageState.DECIDED)
    batch = (*np.flatnonzero(states == MessageState.IN_BATCH).tolist(), *decided.tolist())
    return OpenTransaction(tuple(int(row) for row in flying), tuple(int(row) for row in held), committed, batch, bool(len(decided)))


def doubt_batches(words: NDArray[np.int32]) -> None:
    """Give back the batch that a lost machine left open, in place: its words may be of different ages, so a decision counts for itself alone."""
    found = left_open(words)
    if not found.decided:
        _close_batch(words, found)
    for row in found.batch if found.decided else ():
        decided = int(words[row]) & STATE_MASK == MessageState.DECIDED
        words[row] = int(words[row]) & COUNT_MASK | (MessageState.COMMITTED if decided else MessageState.UNTOUCHED)


def _close_batch(words: NDArray[np.int32], found: OpenTransaction) -> None:
    """Finish or give back the batch that a dead process left open, in place."""
    suspected = MessageState.SUSPECTED if len(found.batch) > SMALL_BATCH else MessageState.SUSPECTED_ALONE
    for row in found.batch:  # the decided one last
        words[row] = int(words[row]) & COUNT_MASK | (MessageState.COMMITTED if found.decided else suspected)


def release(words: NDArray[np.int32]) -> None:
    """Give back what a dead process left open, in place: what had been committed stays so, nothing else is counted."""
    found = left_open(words)
    _close_batch(words, found)
    for row in found.held:
        words[row] = int(words[row]) & COUNT_MASK | (MessageState.COMMITTED if found.committed else MessageState.UNTOUCHED)
    for row in found.in_flight:
        words[row] = int(words[row]) & COUNT_MASK | MessageState.UNTOUCHED


def settle(words: NDArray[np.int32], verdict: MessageState = MessageState.CRASHED) -> OpenTransaction:
    """Finish what a dead process left open, in place, in an order that may itself be interrupted; return what it was.

    :param verdict: CRASHED or TIMED_OUT, for the messages in flight.
    """
    found = left_open(words)
    _close_batch(words, found)
    for row in reversed(found.held):
        value = int(words[row])
        if found.committed:
            words[row] = value & COUNT_MASK | MessageState.COMMITTED
        else:
            words[row] = counted(value, MessageState.UNTOUCHED)
    for row in found.in_flight:
        words[row] = counted(int(words[row]), verdict, crash=True)
    return found


# The file


MAGIC = 0x0A505732
KEEPS_ROWS = 0x0A505733
"""Of sections whose committed messages have a record of what they returned."""
STEP = 64 * 1024
SECTOR = 512
HEADER = 16


def section_size(messages: int) -> int:
    """Return the bytes of a section: its header, the lookup ids, and the words, which end at a multiple of eight."""
    return HEADER + 8 * messages + (4 * messages + 7) // 8 * 8


class Section:
    """The mapped part of a journal that belongs to one batch.

    :param words: the int32 words as a memoryview; the fastest store that Python has.
    """

    def __init__(self, descriptor: int, number: int, offset: int, messages: int) -> None:
        self.number, self.offset, self.messages = number, offset, messages
        page = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        self._mapping = mmap.mmap(descriptor, offset - page + section_size(messages), offset=page)
        self._start = offset - page
        words = self._start + HEADER + 8 * messages
        self.words = memoryview(self._mapping)[words : words + 4 * messages].cast("i")

    def as_array(self) -> NDArray[np.int32]:
        """Return the words as a numpy view."""
        return np.frombuffer(self.words, np.int32)

    def begin(self, lookup_ids: NDArray[np.int64], words: NDArray[np.int32], magic: int = MAGIC) -> None:
        """Fill the section; its header comes last."""
        ids = self._start + HEADER
        self._mapping[ids : ids + 8 * self.messages] = lookup_ids.tobytes()
        self.as_array()[:] = words
        header = memoryview(self._mapping)[self._start : ids].cast("q")
        header[1] = _checksum(self.messages, self._mapping[ids : ids + 8 * self.messages])
        header[0] = magic << 32 | self.messages


class Journal:
    """The writing end of one journal file and its log.

    :param folder: an existing folder. A driver that gives a try up renames its folder; then no new journal can start in it.
    :param partition: names the file, together with the time and a random part.
    :param forced: a section is on disk before it can be worked on, and what became of it before the next one begins.
    :param keeps_rows: there is a file of what deliveries return, too.
    :param at_most_once: what is committed stays so, whether it is known what it returned or not.
    :param share: called with the name of a file, an offset and what stands there, where other nodes are to see how far the try is: with each
        section before it can be worked on, and with what became of it before the next one begins.
    :ivar rows_descriptor: of that file; -1: there is none.
    """

    def __init__(
        self,
        folder: Path,
        partition: str,
        *,
        forced: bool = False,
        keeps_rows: bool = False,
        at_most_once: bool = False,
        share: Callable[[str, int, bytes], None] | None = None,
    ) -> None:
        self._share, self._ends, self._columns, self._open = share, dict[str, int](), dict[str, bytes](), (0, 0)
        self.forced, self._magic = forced, KEEPS_ROWS if keeps_rows and not at_most_once else MAGIC
        name = f"{partition}-{time.time_ns():016x}-{secrets.token_hex(3)}"  # sorted by their names, later ones come later
        self.path = folder / f"{name}.journal"
        self.log_path = folder / f"{name}.log"
        rows_path = rows_beside(self.path)
        hidden = folder / f".{name}.new"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.descriptor = self.log_descriptor = self.rows_descriptor = -1
        try:
            self.log_descriptor = os.open(self.log_path, flags | os.O_APPEND, PRIVATE)
            if keeps_rows:
                self.rows_descriptor = os.open(rows_path, flags, PRIVATE)
            self.descriptor = os.open(hidden, flags, PRIVATE)
            fcntl.flock(self.descriptor, fcntl.LOCK_SH)
            reach("delivery.journal.before_name")
            hidden.rename(self.path)
            reach("delivery.journal.after_name")
            if forced:
                platform.force_names(folder)
        except OSError as error:
            self._let_go()
            for path in (hidden, self.path, self.log_path, rows_path):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            raise _not_made(folder, error) from error
        self._end, self._sections = 0, 0

    def append(self, lookup_ids: NDArray[np.int64], words: NDArray[np.int32]) -> Section:
        """Begin the section of one batch. Raises ServerSessionError when the disk is full."""
        self.force()
        messages = len(lookup_ids)
        end = self._end + section_size(messages)
        try:
            platform.reserve(self.descriptor, (end + HEADER + STEP - 1) // STEP * STEP)
        except OSError as error:
            raise self._cannot_grow(error) from error
        reach("delivery.journal.before_section")
        section = Section(self.descriptor, self._sections, self._end, messages)
        section.begin(lookup_ids, words, self._magic)
        self._open = (self._end, (end + HEADER + STEP - 1) // STEP * STEP)  # to the end of the file
        self.force()
        reach("delivery.journal.after_section")
        self._end, self._sections = end, self._sections + 1
        return section

    def force(self) -> None:
        """Force what was stored so far to disk, and share it, where that is set; texts and returned rows come before words, which need them."""
        if self.forced and self.descriptor >= 0:
            try:
                for descriptor in (self.log_descriptor, self.rows_descriptor, self.descriptor):
                    if descriptor >= 0:
                        platform.force(descriptor)
            except OSError as error:
                raise ServerSessionError(
                    f"The attempt journal {str(self.path)!r} cannot be forced to disk: {why(error)}. Nothing is lost; look at that disk, then run "
                    "the task again."
                ) from error
        self._share_what_is_new()

    def _share_what_is_new(self) -> None:
        """Share texts and returned rows with their columns, and then the words of the last section, which need them."""
        if self._share is None or self.descriptor < 0:
            return
        if self.rows_descriptor >= 0:
            self._share_columns(self._share)
        log_end = os.fstat(self.log_descriptor).st_size
        rows_end = rows_written(self.rows_descriptor).end if self.rows_descriptor >= 0 else 0
        for descriptor, path, end in ((self.log_descriptor, self.log_path, log_end), (self.rows_descriptor, rows_beside(self.path), rows_end)):
            begin = self._ends.get(path.name, 0)
            if end > begin:
                self._share(path.name, begin, _content(descriptor, begin, end))
                self._ends[path.name] = end
        if self._open[1]:
            self._share(self.path.name, self._open[0], _content(self.descriptor, *self._open))

    def _share_columns(self, share: Callable[[str, int, bytes], None]) -> None:
        """Share what the columns of the outputs are by now: at least the columns of the rows that were written so far."""
        for path in columns_beside(self.path.parent):
            with open(path.with_suffix(".lock"), "ab", opener=private) as lock:  # other processes may learn columns, and share them
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
                columns = path.read_bytes()
                if self._columns.get(path.name) != columns:
                    share(path.name, 0, columns)
                    self._columns[path.name] = columns

    def _cannot_grow(self, error: OSError) -> ServerSessionError:
        return ServerSessionError(
            f"The attempt journal {str(self.path)!r} cannot grow: {why(error)}. Nothing of this batch was delivered; free some space and run "
            "the task again."
        )

    def close(self) -> None:
        """Let go of the files; the mapped sections stay valid. The caller has ended every process that could still write."""
        try:
            self.force()
            if self.descriptor >= 0:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # a mapped section holds a descriptor of its own, and the lock with it
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for descriptor in (self.descriptor, self.log_descriptor, self.rows_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self.log_descriptor = self.rows_descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _content(descriptor: int, begin: int, end: int) -> bytes:
    pieces = []
    while begin < end and (piece := os.pread(descriptor, end - begin, begin)):
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)


def rows_beside(journal: Path) -> Path:
    """Return where the rows that a journal's deliveries returned are."""
    return journal.with_suffix(".rows")


class RowsWritten(NamedTuple):
    """The first bytes of that file.

    :param end: where the next record begins; 0: there is none.
    :param last: where the record of the last whole batch begins; 0: there is none.
    """

    end: int
    last: int


ROWS_WRITTEN = struct.Struct("=QQ")


def rows_written(descriptor: int) -> RowsWritten:
    """Return how far the file of returned rows is written."""
    found = os.pread(descriptor, ROWS_WRITTEN.size, 0)
    return RowsWritten(*ROWS_WRITTEN.unpack(found)) if len(found) == ROWS_WRITTEN.size else RowsWritten(0, 0)


COLUMNS_BEGINNING, COLUMNS_ENDING = "output-", ".columns"
"""Of the name of the file that has the columns of an output."""


def columns_beside(folder: Path) -> list[Path]:
    """Return the files of the outputs' columns in a folder of journals."""
    return sorted(folder.glob(f"{COLUMNS_BEGINNING}*{COLUMNS_ENDING}"))


def _not_made(folder: Path, error: OSError) -> ClaimLostError | ServerSessionError:
    if isinstance(error, FileNotFoundError):
        return ClaimLostError(
            f"The journal folder {str(folder)!r} does not exist: this try was given up by its driver, or the folder was never made. "
            "Nothing was delivered; the driver's log says who took over."
        )
    return ServerSessionError(
        f"An attempt journal cannot be made in {str(folder)!r}: {why(error)}. Nothing was delivered; free some space there, or give this "
        "user the right to write, then run the task again."
    )


class SectionContent(NamedTuple):
    """What can be read of a section.

    :param ids: lookup ids, copied.
    :param words: copied; 0 where it is not known.
    :param keeps_rows: a message counts as committed only if the file beside the journal has what it returned.
    """

    ids: NDArray[np.int64]
    words: NDArray[np.int32]
    keeps_rows: bool


@dataclass(frozen=True, slots=True)
class JournalContent:
    """What can be read of a journal.

    :param damage: what cannot be read, in words; empty: everything can.
    """

    sections: tuple[SectionContent, ...]
    damage: tuple[str, ...]


def sections(content: bytes | mmap.mmap, damaged: Callable[[str], object] = lambda _what: None) -> Iterator[SectionContent]:
    """Return each section that can be read in a journal's bytes.

    :param damaged: called with what cannot be read.
    """
    reading = read(content)
    for what in reading.damage:
        damaged(what)
    return iter(reading.sections)


def read(content: bytes | mmap.mmap) -> JournalContent:
    """Read a journal's bytes, whatever has become of them. Behind a section that cannot be read, reading goes on with the next one that can."""
    found: list[SectionContent] = []
    damage = [f"it has {len(content)} bytes, which is no multiple of {STEP}: it was cut short"] if len(content) % STEP else []
    offset = 0
    while offset + HEADER <= len(content):
        section = _section(content, offset)
        if section is None:
            following = _next_section(content, offset + 8)
            if following is None:
                damage += [f"the section at byte {offset} cannot be read"] * (_number(content, offset) != 0)
                break
            damage.append(f"bytes {offset} to {following} cannot be read")
            offset = following
            continue
        ids, words, keeps_rows = section
        known = _known(words, offset + HEADER + 8 * len(ids), len(content))
        if not known.all():
            damage.append(f"{np.count_nonzero(~known)} of {len(ids)} words of the section at byte {offset} cannot be read")
            words = np.where(known, _without_open_transaction(words), 0).astype(np.int32)
        found.append(SectionContent(ids, words, keeps_rows))
        offset += section_size(len(ids))
    return JournalContent(tuple(found), tuple(damage))


def _section(content: bytes | mmap.mmap, offset: int) -> SectionContent | None:
    """Return the section that begins here; words that were cut off are 0.

    None when there is none, or its ids cannot be read.
    """
    start = _number(content, offset)
    magic, messages = start >> 32, start & 0xFFFFFFFF
    ids = offset + HEADER
    if magic not in {MAGIC, KEEPS_ROWS} or ids + 8 * messages > len(content):
        return None
    if _number(content, offset + 8) != _checksum(messages, content[ids : ids + 8 * messages]):
        return None
    words = np.zeros(messages, np.int32)
    there = min(messages, (len(content) - ids - 8 * messages) // 4)
    words[:there] = np.frombuffer(content, np.int32, there, ids + 8 * messages)
    return SectionContent(np.frombuffer(content, np.int64, messages, ids).copy(), words, magic == KEEPS_ROWS)


def _next_section(content: bytes | mmap.mmap, offset: int) -> int | None:
    """Return where the next section begins that can be read."""
    numbers = np.frombuffer(content, np.int64, max(0, len(content) - offset) // 8, offset)
    places = (offset + 8 * int(place) for place in np.flatnonzero(np.isin(numbers >> 32, (MAGIC, KEEPS_ROWS))))
    return next((place for place in places if place + HEADER <= len(content) and _section(content, place) is not None), None)


def _known(words: NDArray[np.int32], start: int, size: int) -> NDArray[np.bool_]:
    """Return which words are there and lie in a sector that holds nothing but words.

    :param start: where in the file the first of them lies.
    :param size: of the file.
    """
    places = start + 4 * np.arange(len(words), dtype=np.int64)
    sectors = places // SECTOR
    damaged = np.unique(sectors[~_can_be_words(words)])
    known: NDArray[np.bool_] = (places + 4 <= size) & ~np.isin(sectors, damaged)
    return known


def _can_be_words(words: NDArray[np.int32]) -> NDArray[np.bool_]:
    can: NDArray[np.bool_] = (words >= 0) & (words & STATE_MASK <= max(MessageState)) & (crashes_of(words) <= attempts_of(words))
    return can


def _without_open_transaction(words: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the words with nothing held: whether its transaction was committed, another word says, which may be one of the lost ones."""
    states = words & STATE_MASK
    held = (states == MessageState.HELD) | (states == MessageState.IN_BATCH)
    words = np.where(states == MessageState.DECIDED, words & COUNT_MASK | MessageState.COMMITTED, words)
    return np.where(held, words & COUNT_MASK | MessageState.UNTOUCHED, words).astype(np.int32)


def _number(content: bytes | mmap.mmap, offset: int) -> int:
    return int(np.frombuffer(content, np.int64, 1, offset)[0])


def _checksum(messages: int, lookup_ids: bytes) -> int:
    return zlib.crc32(lookup_ids, zlib.crc32(messages.to_bytes(8, "little")))
