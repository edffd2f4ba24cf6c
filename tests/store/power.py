"""A disk that loses power: it keeps what was forced to it, and nothing else.

The model is the strictest one that POSIX allows. A file holds what it held when it was last synced, and is empty when it never was; a folder lists
the names that it had when it was last synced. Hard links and renames need no rule of their own, because inodes are told apart, not paths.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.store import durability

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class PowerLostError(BaseException):
    """Stands for the death of a process between a write and its sync: nothing of ours catches it."""


@dataclass
class Disk:
    """What has reached the platter below a folder.

    :param root: exists, empty and synced.
    :ivar synced: the paths that were synced, in order, below ``root``.
    :ivar before_sync: asked with each path before it is synced.
    """

    root: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    folders: set[int] = field(default_factory=set)
    synced: list[str] = field(default_factory=list)
    before_sync: Callable[[Path], None] = lambda _path: None

    @classmethod
    def recording(cls, root: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
        """A disk that notes every sync of this process from now on."""
        root.mkdir()
        disk = cls(root)
        disk._note(root)
        real = os.fsync

        def fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_relative_to(root):
                disk.before_sync(path)
                disk.synced.append(str(path.relative_to(root)))
                disk._note(path)
            real(descriptor)

        def file_system(path: str) -> bool:
            disk.before_sync(Path(path))
            disk.synced.append("the file system")
            for each in (root, *root.rglob("*")):
                disk._note(each)
            return True

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(durability, "_sync_file_system", file_system)
        return disk

    def after_power_loss(self, target: Path) -> Path:
        """Make a copy of what the disk holds when the power comes back."""
        self._restore(self.root.stat().st_ino, target)
        return target

    def _note(self, path: Path) -> None:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            self.names[found.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
            self.folders.update(entry.inode() for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
        else:
            self.folders.discard(found.st_ino)
            self.contents[found.st_ino] = path.read_bytes()

    def _restore(self, folder: int, target: Path) -> None:
        target.mkdir()
        for name, inode in self.names.get(folder, {}).items():
            if inode in self.folders:
                self._restore(inode, target / name)
            else:
                (target / name).write_bytes(self.contents.get(inode, b""))
