"""Forcing files to disk: after these calls return, a loss of power takes nothing back."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
