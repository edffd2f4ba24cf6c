"""Results: what the changes to a queue tell that made them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """What a send did: ids ``first_lookup_id`` .. ``first_lookup_id + messages - 1``; ``repeated`` when an earlier send with this key did it.

    :param held: of the messages, those that went into ``transmission`` because the queue was disabled then.
    """

    messages: int
    first_lookup_id: int
    repeated: bool = False
    held: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """What a return moved from ``retry`` to ``main``."""

    messages: int
    files: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction joined: ``files`` small ones with ``rows`` rows and ``size`` bytes became ``into``."""

    files: int = 0
    into: int = 0
    rows: int = 0
    size: int = 0

    def plus(self, other: Compacted) -> Compacted:
        """Return the sum."""
        return Compacted(self.files + other.files, self.into + other.into, self.rows + other.rows, self.size + other.size)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a cleaning removed from a table's folder, and what it kept although no version needs it now. All numbers but ``size`` are files.

    :param expired: of versions before the retention.
    :param orphans: of no version: what killed verbs had left.
    :param stages: folders of passes that have ended, and of sends that were killed.
    :param temporary: files that their writers had not finished.
    :param size: bytes of all of them. A file that has another name still keeps its place on the disk.
    :param kept_retention: removed from the table within the retention: readers of an older version need them.
    :param kept_young: of no version, and young: a send or a pass may be about to commit them.
    :param kept_staged: of no version, and named by what a pass has staged that somebody will finish.
    :param kept_told: named by an event that is told of each of their messages.
    """

    expired: int = 0
    orphans: int = 0
    stages: int = 0
    temporary: int = 0
    size: int = 0
    kept_retention: int = 0
    kept_young: int = 0
    kept_staged: int = 0
    kept_told: int = 0


@dataclass(frozen=True, slots=True)
class Shortened:
    """What became of the log.

    :param checkpoint: the version of the newest checkpoint; -1: none.
    :param entries: files of the log that were removed, with ``size`` bytes.
    :param oldest: the oldest version that can still be read.
    """

    checkpoint: int = -1
    entries: int = 0
    size: int = 0
    oldest: int = 0
