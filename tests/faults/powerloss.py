"""Loss of power, as a model: what was never forced to disk is gone, as bluntly as POSIX allows.

Shown is what the product's own calls of ``fsync`` and ``syncfs`` ask for, not what a disk does: a file is worth what it held when it was last
synced (nothing, when never), a folder names what it named when *it* was last synced. Real file systems keep more. delta-rs syncs nothing, so what
it writes is worth nothing until the product has synced it. Hard links and renames need no rule of their own, because inodes are told apart, not
paths. Kept is all this in a folder beside the watched one, so that several processes can take turns, or write at the same time.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.store import disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class PowerLostError(BaseException):
    """Stands for the death of a process between a write and its sync: nothing of ours catches it."""


class Disk:
    """What would survive.

    :param root: the folder that is watched; what it holds when it is watched first is on disk.
    :param memory: a folder on the same file system; keeps a second name of each synced file, so that its number stays its own.
    :ivar order: what this process has synced, in order: paths below ``root``.
    :ivar before_sync: asked with each path before it is synced.
    """

    def __init__(self, root: Path, memory: Path) -> None:
        self.order: list[str] = []
        self.before_sync: Callable[[Path], None] = lambda _path: None
        self._root, self._memory = root, memory
        new = not memory.exists()
        for part in ("content", "names", "kept"):
            (memory / part).mkdir(parents=True, exist_ok=True)
        if new and root.exists():
            self.all_synced()

    @property
    def root(self) -> Path:
        return self._root

    def watch(self, replace: Callable[[Any, str, Any], None] = setattr) -> None:
        """Note every sync of this process.

        :param replace: puts a function in the place of another one.
        """
        sync, whole = os.fsync, disk._sync_file_system

        def fsync(descriptor: Any) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if not path.is_relative_to(self._root):
                sync(descriptor)
                return
            self.before_sync(path)
            sync(descriptor)
            self.order.append(str(path.relative_to(self._root)))
            self.synced(path)

        def syncfs(path: str) -> bool:
            self.before_sync(Path(path))
            done = whole(path)
            if done:
                self.order.append("the file system")
                self.all_synced()
            return done

        replace(os, "fsync", fsync)
        replace(disk, "_sync_file_system", syncfs)

    def synced(self, path: Path) -> None:
        """Note that a file or a folder is on disk as it is now; for two processes at once, in the order in which they look."""
        if not path.is_relative_to(self._root):
            return
        with self._alone():
            try:
                found = path.stat()
                if stat.S_ISDIR(found.st_mode):
                    self._put("names", found, json.dumps({each.name: [each.inode(), each.is_dir()] for each in os.scandir(path)}).encode())
                    return
                kept = self._memory / "kept" / str(found.st_ino)
                if not kept.exists():
                    os.link(path, kept)
                self._put("content", found, path.read_bytes())
            except FileNotFoundError:  # somebody has removed it since
                return

    def lose_power(self) -> None:
        """Put the root into the state that a loss of power now could leave."""
        survived = self.after_power_loss(self._root.with_name(self._root.name + ".survived"))
        shutil.rmtree(self._root)
        shutil.rmtree(self._memory)
        survived.rename(self._root)
        self.__init__(self._root, self._memory)  # type: ignore[misc]

    def after_power_loss(self, target: Path) -> Path:
        """Make a copy of what the disk holds when the power comes back."""
        self._restore(self._root.stat().st_ino, target)
        return target

    def all_synced(self) -> None:
        """Note that everything is on disk."""
        for path in [self._root, *self._root.rglob("*")]:
            self.synced(path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self._memory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _put(self, part: str, found: os.stat_result, content: bytes) -> None:
        beside = self._memory / part / f".{found.st_ino}"
        beside.write_bytes(content)
        os.utime(beside, ns=(found.st_atime_ns, found.st_mtime_ns))
        beside.rename(self._memory / part / str(found.st_ino))

    def _restore(self, number: int, target: Path) -> None:
        target.mkdir()
        names = self._memory / "names" / str(number)
        for name, (child, is_folder) in (json.loads(names.read_text()) if names.exists() else {}).items():
            content = self._memory / "content" / str(child)
            if is_folder:
                self._restore(child, target / name)
            elif content.exists():
                shutil.copy2(content, target / name)
            else:
                (target / name).touch()
