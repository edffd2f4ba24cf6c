"""The disk under a store: files forced to it, and what it raises turned into errors that say the table's name and what to do.

After a ``sync`` has returned, a loss of power takes nothing back. Errors are named in one place for all verbs: code that knows better (a lost claim,
a missing file, a damaged footer) says so below, and those errors pass.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import socket
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.values.errors import PoisonError, StoreUnreachableError, TableChangedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_MANY = 32  # above it, one call for the whole file system is faster than one a file


def sync(path: str | Path) -> None:
    """Force a file, or a folder's list of names, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_if_there(path: str | Path) -> None:
    """Force a file to disk that may have been removed meanwhile. Raises OSError."""
    with suppress(FileNotFoundError):
        sync(path)


def sync_files(root: str, names: Sequence[str]) -> None:
    """Force files below ``root``, and the folders that name them up to it, to disk."""
    if not names:
        return
    if len(names) > _MANY and _sync_file_system(root):
        return
    folders: set[Path] = set()
    for name in names:
        path = Path(root, name)
        sync(path)
        folders.update(parent for parent in path.parents if parent.is_relative_to(root))
    for folder in sorted(folders, reverse=True):
        sync(folder)


def create(path: Path, content: bytes) -> None:
    """Make a file with all of this content; nothing is forced to disk. Raises FileExistsError where there is one, OSError."""
    beside = path.with_name(f".tmp-{uuid4().hex}")
    try:
        beside.write_bytes(content)
        os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def sync_ancestors(folder: Path) -> None:
    """Force a folder and all above it to disk, as far up as this user may list them: others are not new. Raises OSError for the folder itself."""
    sync(folder)
    with suppress(OSError):
        for each in folder.parents:
            sync(each)


def sync_up(folder: Path, root: Path) -> None:
    """Force a folder and those above it up to ``root`` to disk."""
    for each in (folder, *folder.parents):
        sync(each)
        if each == root:
            return


def _sync_file_system(path: str) -> bool:
    """Force everything of the file system to disk; False where the kernel has no such call (only Linux has)."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(descriptor)
    return True


def lock(descriptor: int, patience: float, poll: float) -> bool:
    """Take the lock of an open file, which the kernel lets go of when its holder dies. False: others have held it for ``patience`` seconds.

    Raises OSError on a file system without locks.
    """
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(poll)
        else:
            return True


# Named errors ---------------------------------------------------------------------------------------------------------


POSIX = "with the semantics of POSIX (atomic link, rename and O_EXCL, fsync, flock; local disks are what is tested)"
"""What a file system of a store must do, as errors say it."""

_NUMBER = re.compile(r"(?:os error |[Ee]rrno )(\d+)")
_COLOUR = re.compile(r"\x1b\[\d+m")
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "the disk is full. Free some space there"),
    errno.EROFS: "it is read-only. Mount it writable",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "permission denied. Give this user the right to read and write all of it"),
    errno.ENOTDIR: "a file is in the place of a folder. Name a folder",
    errno.EEXIST: "a file is there already. Name another place",
    errno.EMFILE: "too many files are open. Raise the limit of this process",
    errno.EFBIG: "a file would become larger than this process may write. Raise the limit (ulimit -f)",
    errno.EIO: "the disk reports an error. Look at the disk, restore what is damaged from a backup",
}
_AGAIN = "then run the task again: what has been committed counts, and nothing is done twice"


@contextmanager
def named(root: str) -> Iterator[None]:
    """Turn what is raised about the files below ``root`` into errors of this package: StoreUnreachableError, TableChangedError."""
    try:
        yield
    except Exception as error:
        raise_named(root, error)
        raise


@contextmanager
def on_node(folder: str | Path, uri: str) -> Iterator[None]:
    """Raise what ``raise_of_node`` does of all that the block raises."""
    try:
        yield
    except OSError as error:
        raise_of_node(folder, uri, error)
        raise


def why(error: Exception) -> str:
    """Return the cause of an error and what to do about it, in words."""
    number = _number(error)
    text = " ".join(_COLOUR.sub("", str(error)).split()) or type(error).__name__
    path = getattr(error, "filename", None)
    where = f" ({path})" if path else ""
    if number in _ADVICE:
        cause, _, advice = _ADVICE[number].partition(". ")
        return f"{cause}{where}. {advice}, {_AGAIN}"
    cause = f"{os.strerror(number)}{where}" if number else text[:300].rstrip(".")
    return f"{cause}. Check that it is mounted and whole, {_AGAIN}"


def raise_named(root: str, error: Exception) -> None:
    """Raise an error of this package in place of an error of a disk, Arrow or delta-rs; nothing happens for others."""
    if isinstance(error, PoisonError):
        return
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    if isinstance(error, OSError) or (isinstance(error, DeltaError) and _number(error)):
        raise StoreUnreachableError(f"The queue table or store {root} cannot be read or written: {why(error)}.") from error
    if isinstance(error, pa.ArrowException | DeltaError):
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300].rstrip(".")
        raise TableChangedError(
            f"The queue table or store {root} holds what cannot be read, or what was to be written does not fit: {cause}. Nothing was committed. "
            "Look at it with 'airflow poison check'; restore what it names from a backup."
        ) from error


def raise_of_node(folder: str | Path, uri: str, error: BaseException) -> None:
    """Raise StoreUnreachableError where a folder of this machine is at fault, and neither a table nor its object store.

    Nothing happens for others: of a file that is gone, or a line that was cut, the caller knows better.

    :param folder: where this machine keeps its copies, and the journals of passes that run on it.
    :param uri: of the table or store.
    """
    if isinstance(error, OSError) and error.errno in _ADVICE:
        raise StoreUnreachableError(
            f"The folder {folder} of the machine {socket.gethostname()}, where it keeps what it needs of {uri}, cannot be used: {why(error)}. "
            "It is in the temporary folder; TMPDIR names another one."
        ) from error


def _number(error: Exception) -> int:
    """Return the system's number of an error; 0 when it has none. delta-rs has it in the text only."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else 0
