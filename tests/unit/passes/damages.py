"""What can happen to the files that a dead pass has left for the next one."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def removed(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path) -> None:
    """In the middle of what was written (a journal is longer than that)."""
    os.truncate(path, min(path.stat().st_size // 2, 100))


def zeroed(path: Path) -> None:
    """As a file system may leave it after a loss of power."""
    path.write_bytes(bytes(path.stat().st_size))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def overwritten(at: int, size: int) -> Callable[[Path], None]:
    """Something else, from a byte on."""

    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes((content[:at] + random.Random(at).randbytes(size) + content[at + size :])[: len(content)])

    return damage


JOURNAL = "_stage/*/*/journal/*.journal"
LOG = "_stage/*/*/journal/*.log"
LEFT_FOR_THE_NEXT: dict[str, tuple[str, Callable[[Path], None]]] = {
    "journal removed": (JOURNAL, removed),
    "journal emptied": (JOURNAL, emptied),
    "journal cut": (JOURNAL, cut),
    "journal full of zeros": (JOURNAL, zeroed),
    "a folder for a journal": (JOURNAL, a_folder),
    "header garbled": (JOURNAL, overwritten(0, 8)),
    "ids garbled": (JOURNAL, overwritten(20, 9)),
    "words garbled": (JOURNAL, overwritten(16 + 8 * 6, 24)),
    "journal full of anything": (JOURNAL, overwritten(0, 65_536)),
    "log removed": (LOG, removed),
    "log full of zeros": (LOG, zeroed),
    "log garbled": (LOG, overwritten(0, 60)),
    "a folder for a log": (LOG, a_folder),
}
"""Of a pass over six messages, two of which have failed for good."""
