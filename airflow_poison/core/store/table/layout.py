"""Where everything of a queue lies below its root, and what paths say."""

from __future__ import annotations

import re
from uuid import uuid4

STAGE = "_stage"
CLAIM = "_claim"
CONTROL = "_ctl"
SEND_LOCK = "_send.lock"
MANIFEST = "manifest.json"

_VERSION_DIGITS = 20
_PARTITION = re.compile(r"(?:.*/)?sub_queue=([^/]+)/move_count=(\d+)/[^/]+")
_IN_COMMIT_ORDER = re.compile(r"(\d{20})-\d{6}-")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def new_path(sub_queue: str, move_count: int, prefix: str = "") -> str:
    """Return a path for a new data file that no other file has."""
    return moved_path(f"{prefix}{uuid4().hex}.parquet", sub_queue, move_count)


def moved_path(name: str, sub_queue: str, move_count: int) -> str:
    """Return the path of a file of this name (or path) in another partition. Some readers know a row's partition only by its path."""
    return f"sub_queue={sub_queue}/move_count={move_count}/{name.rpartition('/')[2]}"


def partition_of(path: str) -> tuple[str, int] | None:
    """Return (sub-queue, move count) that a path says, or None."""
    match = _PARTITION.fullmatch(path)
    return (match[1], int(match[2])) if match else None


def commit_prefix(version: int, part: int = 0) -> str:
    """Return the beginning of a name that says which version brought a file: sorted by name, such files are in commit order.

    :param part: orders the files of one version.
    """
    return f"{version:020d}-{part:06d}-"


def commit_version(path: str) -> int | None:
    """Return the version that ``commit_prefix`` has put into the name of a file; None when it did not name it."""
    match = _IN_COMMIT_ORDER.match(path.rpartition("/")[2])
    return int(match[1]) if match else None


def joined_prefix(first: int, last: int) -> str:
    """Return the beginning of names of event files that were joined from those of versions ``first`` to ``last``."""
    return f"{first:020d}-{last:020d}-"


def event_versions(path: str) -> tuple[int, int]:
    """Return the first and the last version whose events an event file holds."""
    first, second = path.rpartition("/")[2].split("-")[:2]
    return int(first), int(second) if is_joined(path) else int(first)


def is_joined(path: str) -> bool:
    """Whether an event file was joined from others: its name has two versions where others have one and a part."""
    return len(path.rpartition("/")[2].split("-")[1]) == _VERSION_DIGITS


def stage_folder(key: str) -> str:
    """Return the folder of a run key below the root. Keys that cannot be a folder's name are hashed."""
    if _FOLDER.fullmatch(key):
        return f"{STAGE}/{key}"
    from hashlib import sha256

    return f"{STAGE}/{sha256(key.encode()).hexdigest()}"
