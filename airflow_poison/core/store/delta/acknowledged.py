"""Acknowledged versions: for each commit that somebody was told of, a mark outside the log, with a copy of the entry.

The mark is written after the entry was forced to disk and before the commit is acknowledged. So an entry that is damaged and has no mark was never
acknowledged to anybody (a loss of power cut it short), and one that has a mark was: only damage from outside can have changed it. The mark is the
file's *name*, which says version, size and checksum of the entry; its content is a copy that a repair can put back.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_poison.core.fault_points import reach
from airflow_poison.core.store import durability

FOLDER = "_acknowledged"
KEPT = 40  # marks; more than there are entries since the last checkpoint, which are those that a reader takes from the log
_NAME = re.compile(r"(\d{20})-(\d+)-([0-9a-f]{8})\.json")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One acknowledged version.

    :param size: bytes of its entry in the log; ``checksum``: their CRC-32.
    """

    version: int
    size: int
    checksum: int

    @property
    def name(self) -> str:
        """The name of its mark."""
        return f"{self.version:020d}-{self.size}-{self.checksum:08x}.json"

    def copy(self, root: str) -> bytes | None:
        """Return the copy of the entry; None when it is not whole: its writer died, or the disk was full."""
        return self.content(Path(root, FOLDER, self.name))

    def content(self, path: Path) -> bytes | None:
        """Return what a file holds when it is this entry; None otherwise."""
        try:
            found = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found if self.is_of(found) else None

    def is_of(self, entry: bytes) -> bool:
        """Whether an entry with this content is the one that was acknowledged."""
        return (len(entry), zlib.crc32(entry)) == (self.size, self.checksum)


def read(root: str) -> dict[int, Acknowledged]:
    """Return the marks by version, the oldest first; none: the table was made by a release without marks, or somebody removed them."""
    try:
        names = os.listdir(Path(root, FOLDER))  # noqa: PTH208  (names only; asked at every look)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = (Acknowledged(int(match[1]), int(match[2]), int(match[3], 16)) for name in sorted(names) if (match := _NAME.fullmatch(name)))
    return {each.version: each for each in found}


def note(root: str, version: int, content: bytes, *, durable: bool) -> None:
    """Mark a version whose entry, with this content, is on disk, and remove marks that are too old to be needed. Raises OSError."""
    mark = Acknowledged(version, len(content), zlib.crc32(content))
    folder = Path(root, FOLDER)
    known = read(root)
    there = known.get(version)
    if there != mark:
        _write(folder, mark, content, durable=durable)
        reach("store.log.before_mark_is_synced")
        if durable:
            durability.sync(folder)
        if there is not None:  # of an entry that a restored backup or a repair has replaced
            (folder / there.name).unlink(missing_ok=True)
    for old in [*known.values()][:-KEPT]:
        (folder / old.name).unlink(missing_ok=True)


def _write(folder: Path, mark: Acknowledged, content: bytes, *, durable: bool) -> None:
    """Write a mark. Its name has to be there; a copy for which the disk has no room is left out."""
    try:
        descriptor = os.open(folder / mark.name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        folder.mkdir(exist_ok=True)
        if durable:
            durability.sync(folder.parent)
        descriptor = os.open(folder / mark.name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb") as file, suppress(OSError):
        file.write(content)
