"""The disk under a store: files forced to it, and what it raises turned into errors that say the table's name and what to do.

After a ``sync`` has returned, a loss of power takes nothing back. Errors are named in one place for all verbs: code that knows better (a lost claim,
a missing file, a damaged footer) says so below, and those errors pass.

``Folder`` is the interface to the files of a queue table. There are two: ``LocalFolder``, which all users of the table share, and
``bucket_folder.BucketFolder``, an object store with copies of the needed files on this node. Callers use paths relative to the table.
Data files are immutable: one that is ``here`` is the one that was committed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol
from uuid import uuid4

from airflow_poison.values.errors import PoisonError, StoreUnreachableError, TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import deltalake, pa
from airflow_poison.values.texts import first_line


@dataclass(frozen=True, slots=True)
class Found:
    """A file that lies in a folder, or a folder of the stage.

    :param path: below the table.
    :param size: bytes that its removal gives back: none while the file has another name.
    :param age: seconds since it was made, changed, linked or renamed.
    """

    path: str
    size: int
    age: float

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


class Folder(Protocol):
    """Where the files of a queue table are."""

    @property
    def root(self) -> str:
        """The folder on this node: new files are written there, and the attempt journals of the passes that run on this node stay there."""

    @property
    def uri(self) -> str:
        """Where the table lies for everybody."""

    @property
    def node(self) -> str:
        """What names ``root`` where no other node has it; empty where all users share it."""

    def here(self, path: str) -> Path:
        """Return where a committed file lies on this node; it is brought here first where that is necessary. Raises OSError."""

    def bring(self, paths: Sequence[str]) -> None:
        """Bring committed files to this node, side by side, where that is necessary: before many of them are read one by one.

        Those that are gone are left out: who reads them says so. Raises StoreUnreachableError.
        """

    def size(self, path: str) -> int | None:
        """Return how many bytes a committed file has; None where that would cost a request. Raises FileNotFoundError."""

    def publish(self, paths: Sequence[str]) -> None:
        """Make new files as durable as the commit that will name them, and there for everybody. Raises OSError."""

    def link(self, source: str, target: str) -> None:
        """Give a file another name; nothing happens when an earlier, killed try did it. Raises FileNotFoundError."""

    def rename(self, source: str, target: str) -> None:
        """Give a file that no version names another name. Raises FileNotFoundError."""

    def remove(self, path: str) -> None:
        """Remove a file that no version needs; nothing happens when it is gone."""

    def share(self, paths: Sequence[str]) -> None:
        """Make files of the stage as durable as ``place`` makes one, and there for later holders of the claim. Raises OSError."""

    def place(self, beside: Path, path: str) -> None:
        """Give a staged file its name, durably, whole and once. Raises FileNotFoundError when its holder lost the claim."""

    def shut_out(self, holder: str, fenced: str) -> None:
        """Shut an earlier holder of a claim out: from now on it places nothing, and what it has left lies under another name on this node.

        Safe to repeat. Raises OSError when that cannot be done.
        """

    def close(self, holder: str) -> None:
        """End the work of a holder on nodes that are not seen from here: none of its tasks begins anything more, and it places nothing.

        Safe to repeat, and beside ``shut_out``. Raises OSError when that cannot be done.
        """

    def sharing(self, holder: str, folder: str) -> Callable[[str, int, bytes], None] | None:
        """Return what takes pieces of the files of a holder's folder for other nodes: name, offset, content. None where everybody sees them.

        It raises ClaimLostError once the holder has lost the claim.
        """

    def leave(self, holder: str, note: str) -> None:
        """Remove a holder's note, once later holders can read whatever else is in its folder. Raises OSError."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder of the stage as far as possible."""

    def data_files(self) -> Iterator[Found]:
        """Yield the files of all partitions, temporary ones (their names begin with a dot) too."""

    def stages(self) -> Iterator[Found]:
        """Yield the folders of the stage that lie elsewhere than on this node."""

    def fetched(self, path: str) -> str:
        """Return a path or URL from which a reader without own permissions can get a shared file, for an hour."""

    def copied(self) -> AbstractContextManager[str]:
        """Yield a folder that has all of the table, as it is now: the table itself where that is a folder, else a copy for a while."""


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder of a file system that all users of the table mount at the same path.

    :param root: absolute.
    :param durable: force files to disk.
    """

    node: ClassVar[str] = ""
    root: str
    durable: bool = True

    @property
    def uri(self) -> str:
        return self.root

    def here(self, path: str) -> Path:
        return Path(self.root, path)

    def bring(self, paths: Sequence[str]) -> None:
        del paths

    def size(self, path: str) -> int:
        return Path(self.root, path).stat().st_size

    def publish(self, paths: Sequence[str]) -> None:
        if self.durable:
            sync_files(self.root, paths)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name: a hard link where there are some, else a copy.

        The time of change is set to now: a foreign VACUUM must not remove an old file that no version names yet.
        """
        second_name(Path(self.root, source), Path(self.root, target))

    def rename(self, source: str, target: str) -> None:
        place = Path(self.root, target)
        place.parent.mkdir(parents=True, exist_ok=True)
        Path(self.root, source).rename(place)

    def remove(self, path: str) -> None:
        Path(self.root, path).unlink(missing_ok=True)

    def share(self, paths: Sequence[str]) -> None:
        self.publish(paths)

    def place(self, beside: Path, path: str) -> None:
        """Rename the file, with what is in it on disk before, and its name after."""
        if self.durable:
            sync(beside)
        reach("store.seal.before_rename")
        place = Path(self.root, path)
        beside.rename(place)
        if self.durable:
            sync_up(place.parent, Path(self.root))

    def shut_out(self, holder: str, fenced: str) -> None:
        try:
            Path(self.root, holder).rename(Path(self.root, fenced))
        except OSError as error:
            # ENOENT: done by an earlier call. ENOTEMPTY: done too, and the former holder has created its folder again, which is ignored.
            if error.errno not in {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}:
                raise

    def close(self, holder: str) -> None:
        """Do nothing, because a shared folder shows which processes use it."""
        del holder

    def sharing(self, holder: str, folder: str) -> None:
        """Return None."""
        del holder, folder

    def leave(self, holder: str, note: str) -> None:
        Path(self.root, holder, note).unlink()

    def remove_tree(self, path: str) -> None:
        """Remove the folder: a shut-out holder may still write below it."""
        shutil.rmtree(Path(self.root, path), ignore_errors=True)

    def data_files(self) -> Iterator[Found]:
        for folder in Path(self.root).glob("sub_queue=*/move_count=*"):
            with suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and (found := look(self.root, Path(entry.path))) is not None:
                        yield found

    def stages(self) -> Iterator[Found]:
        return iter(())

    def fetched(self, path: str) -> str:
        return str(self.here(path))

    def copied(self) -> AbstractContextManager[str]:
        return nullcontext(self.root)


def look(root: str, path: Path) -> Found | None:
    """Return what lies at a path; None when it is gone."""
    try:
        seen = path.lstat()
    except FileNotFoundError:
        return None
    return Found(str(path.relative_to(root)), seen.st_size if seen.st_nlink == 1 else 0, time.time() - max(seen.st_mtime, seen.st_ctime))


def second_name(source: Path, target: Path) -> None:
    """Give a file its name in another folder; nothing happens when an earlier, killed try did it. Raises FileNotFoundError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except FileNotFoundError:
        if not target.exists():
            raise
        return
    except OSError:  # a file system without hard links
        beside = target.with_name(f".{uuid4().hex}")
        shutil.copyfile(source, beside)
        beside.replace(target)
    os.utime(target)


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
    if isinstance(error, OSError) or (isinstance(error, deltalake.exceptions.DeltaError) and _number(error)):
        raise StoreUnreachableError(f"The queue table or store {root} cannot be read or written: {why(error)}.") from error
    if isinstance(error, pa.ArrowException | deltalake.exceptions.DeltaError):
        cause = first_line(error, 300)
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
