"""The attempt journal: a file that worker and child map shared, so that no death of any process forgets an attempt.

One file per task attempt, a section per Arrow batch::

    section   8 bytes   magic << 32 | number of messages   (stored last: an unfinished section does not exist)
              8 n       lookup ids, int64
              4 n       words, int32 (see words.py), padded to 8

Beside it lies a log of texts (failurelog.py). Both descriptors carry a shared lock (``flock``) that lives as long as any process
that may still write, and that is taken before the file gets its final name: who finds a journal can wait for its writers.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import time
from typing import TYPE_CHECKING, Self

import numpy as np

from airflow_poison.core.delivery.sessions import platform
from airflow_poison.core.errors import ClaimLostError, ServerSessionError
from airflow_poison.core.fault_points import reach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAGIC = 0x0A505731
STEP = 64 * 1024
_HEADER = 8


def _section_size(messages: int) -> int:
    return _HEADER + 8 * messages + (4 * messages + 7) // 8 * 8


class Section:
    """The mapped part of a journal that belongs to one batch.

    :param words: the int32 words as a memoryview; the fastest store that Python has.
    """

    def __init__(self, descriptor: int, number: int, offset: int, messages: int) -> None:
        self.number, self.offset, self.messages = number, offset, messages
        page = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        self._mapping = mmap.mmap(descriptor, offset - page + _section_size(messages), offset=page)
        self._start = offset - page
        words = self._start + _HEADER + 8 * messages
        self.words = memoryview(self._mapping)[words : words + 4 * messages].cast("i")

    def as_array(self) -> NDArray[np.int32]:
        """Return the words as a numpy view."""
        return np.frombuffer(self.words, np.int32)

    def begin(self, lookup_ids: NDArray[np.int64], words: NDArray[np.int32]) -> None:
        """Fill the section; its header comes last."""
        ids = self._start + _HEADER
        self._mapping[ids : ids + 8 * self.messages] = lookup_ids.tobytes()
        self.as_array()[:] = words
        memoryview(self._mapping)[self._start : self._start + _HEADER].cast("q")[0] = MAGIC << 32 | self.messages


class Journal:
    """The writing end of one journal file and its log.

    :param folder: an existing folder. A driver that gives a try up renames its folder; then no new journal can start in it.
    :param partition: names the file, together with the time and a random part.
    """

    def __init__(self, folder: Path, partition: str) -> None:
        name = f"{partition}-{time.time_ns():016x}-{secrets.token_hex(3)}"  # sorted by their names, later ones come later
        self.path = folder / f"{name}.journal"
        self.log_path = folder / f"{name}.log"
        hidden = folder / f".{name}.new"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self.log_descriptor = os.open(self.log_path, flags | os.O_APPEND, 0o644)
            self.descriptor = os.open(hidden, flags, 0o644)
            fcntl.flock(self.descriptor, fcntl.LOCK_SH)
            reach("delivery.journal.before_name")
            hidden.rename(self.path)
            reach("delivery.journal.after_name")
        except FileNotFoundError as error:
            raise ClaimLostError(
                f"The journal folder {str(folder)!r} does not exist: this try was given up by its driver, or the folder was never made. "
                "Nothing was delivered; the driver's log says who took over."
            ) from error
        self._end, self._sections = 0, 0

    def append(self, lookup_ids: NDArray[np.int64], words: NDArray[np.int32]) -> Section:
        """Begin the section of one batch. Raises ServerSessionError when the disk is full."""
        messages = len(lookup_ids)
        end = self._end + _section_size(messages)
        try:
            platform.reserve(self.descriptor, (end + _HEADER + STEP - 1) // STEP * STEP)
        except OSError as error:
            raise self._cannot_grow(error) from error
        reach("delivery.journal.before_section")
        section = Section(self.descriptor, self._sections, self._end, messages)
        section.begin(lookup_ids, words)
        reach("delivery.journal.after_section")
        self._end, self._sections = end, self._sections + 1
        return section

    def _cannot_grow(self, error: OSError) -> ServerSessionError:
        why = "the disk is full" if error.errno == errno.ENOSPC else os.strerror(error.errno or 0)
        return ServerSessionError(
            f"The attempt journal {str(self.path)!r} cannot grow: {why}. Nothing of this batch was delivered; free some space and run the task again."
        )

    def close(self) -> None:
        """Let go of the files; the mapped sections stay valid. The caller has ended every process that could still write."""
        if self.descriptor >= 0:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # a mapped section holds a descriptor of its own, and the lock with it
        for descriptor in (self.descriptor, self.log_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self.log_descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sections(content: bytes | mmap.mmap) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
    """Return the lookup ids and words of each section in a journal's bytes, copied."""
    offset = 0
    while offset + _HEADER <= len(content):
        header = int(np.frombuffer(content, np.int64, 1, offset)[0])
        messages = header & 0xFFFFFFFF
        if header >> 32 != MAGIC:
            return
        ids = np.frombuffer(content, np.int64, messages, offset + _HEADER).copy()
        words = np.frombuffer(content, np.int32, messages, offset + _HEADER + 8 * messages).copy()
        yield ids, words
        offset += _section_size(messages)
