"""The seam for the files of a queue table: a folder that all its users share, or an object store with copies of the needed files on this node.

Two kinds of folder stand behind it: ``LocalFolder`` and ``bucket.folder.BucketFolder``. Callers use paths relative to the table.
Data files are immutable: one that is ``here`` is the one that was committed.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from airflow_poison.store import disk
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager


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

    root: str
    durable: bool = True

    @property
    def uri(self) -> str:
        """The folder itself."""
        return self.root

    @property
    def node(self) -> str:
        """Nothing: it is everybody's."""
        return ""

    def here(self, path: str) -> Path:
        """Return the file's place."""
        return Path(self.root, path)

    def bring(self, paths: Sequence[str]) -> None:
        """Do nothing: they are here."""
        del paths

    def size(self, path: str) -> int:
        """Return what the file system says."""
        return Path(self.root, path).stat().st_size

    def publish(self, paths: Sequence[str]) -> None:
        """Force files, and the folders that name them, to disk."""
        if self.durable:
            disk.sync_files(self.root, paths)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name: a hard link where there are some, else a copy.

        The time of change is set to now: a foreign VACUUM must not remove an old file that no version names yet.
        """
        second_name(Path(self.root, source), Path(self.root, target))

    def rename(self, source: str, target: str) -> None:
        """Rename the file."""
        place = Path(self.root, target)
        place.parent.mkdir(parents=True, exist_ok=True)
        Path(self.root, source).rename(place)

    def remove(self, path: str) -> None:
        """Remove the file."""
        Path(self.root, path).unlink(missing_ok=True)

    def share(self, paths: Sequence[str]) -> None:
        """Force files to disk, where a later holder sees them."""
        self.publish(paths)

    def place(self, beside: Path, path: str) -> None:
        """Rename the file, with what is in it on disk before, and its name after."""
        if self.durable:
            disk.sync(beside)
        reach("store.seal.before_rename")
        place = Path(self.root, path)
        beside.rename(place)
        if self.durable:
            disk.sync_up(place.parent, Path(self.root))

    def shut_out(self, holder: str, fenced: str) -> None:
        """Rename the holder's folder."""
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
        """Remove the note."""
        Path(self.root, holder, note).unlink()

    def remove_tree(self, path: str) -> None:
        """Remove the folder: a shut-out holder may still write below it."""
        shutil.rmtree(Path(self.root, path), ignore_errors=True)

    def data_files(self) -> Iterator[Found]:
        """Yield what lies in the folders of the partitions."""
        for folder in Path(self.root).glob("sub_queue=*/move_count=*"):
            with suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and (found := look(self.root, Path(entry.path))) is not None:
                        yield found

    def stages(self) -> Iterator[Found]:
        """Yield nothing: everything is here."""
        return iter(())

    def fetched(self, path: str) -> str:
        """Return its path."""
        return str(self.here(path))

    def copied(self) -> AbstractContextManager[str]:
        """Yield the folder itself."""
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
