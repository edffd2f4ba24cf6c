"""Loss of power, as a model: what was never forced to disk is gone, as bluntly as POSIX allows.

Shown is what the product's own calls of ``fsync`` and ``syncfs`` ask for, not what a disk does: a file is worth what it held when it was last
synced (nothing, when never), a folder names what it named when *it* was last synced. Real file systems keep more. delta-rs syncs nothing, so what
it writes is worth nothing until the product has synced it. Kept is all this in a folder beside the store, so that several processes can take turns.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from airflow_poison.core.store import durability
from tests.faults.planted import replace


class Disk:
    """What would survive.

    :param root: the folder that is watched.
    :param memory: a folder on the same file system; keeps a second name of each synced file, so that its number stays its own.
    """

    def __init__(self, root: Path, memory: Path) -> None:
        self._root, self._memory = root, memory
        for part in ("content", "names", "kept"):
            (memory / part).mkdir(parents=True, exist_ok=True)

    def watch(self) -> None:
        """Note every sync of this process."""
        sync, whole = os.fsync, durability._sync_file_system

        def fsync(descriptor: Any) -> None:
            sync(descriptor)
            self.synced(Path(f"/proc/self/fd/{descriptor}").readlink())

        def syncfs(path: str) -> bool:
            for found in [self._root, *self._root.rglob("*")]:
                self.synced(found)
            return whole(path)

        replace(os, "fsync", fsync)
        replace(durability, "_sync_file_system", syncfs)

    def synced(self, path: Path) -> None:
        """Note that a file or a folder is on disk as it is now."""
        if not path.is_relative_to(self._root) or not path.exists():
            return
        number = path.stat().st_ino
        if path.is_dir():
            names = {each.name: [each.inode(), each.is_dir()] for each in os.scandir(path)}
            self._put("names", number, json.dumps(names).encode())
            return
        kept = self._memory / "kept" / str(number)
        if not kept.exists():
            os.link(path, kept)
        self._put("content", number, path.read_bytes())

    def _put(self, part: str, number: int, content: bytes) -> None:
        beside = self._memory / part / f".{number}-{os.getpid()}"
        beside.write_bytes(content)
        beside.rename(self._memory / part / str(number))

    def lose_power(self) -> None:
        """Put the root into the state that a loss of power now could leave."""
        survived = self._root.with_name(self._root.name + ".survived")
        self._restore(self._root.stat().st_ino, survived)
        shutil.rmtree(self._root)
        shutil.rmtree(self._memory)
        survived.rename(self._root)
        self.__init__(self._root, self._memory)  # type: ignore[misc]
        for path in [self._root, *self._root.rglob("*")]:
            self.synced(path)  # what has survived is on disk

    def _restore(self, number: int, target: Path) -> None:
        target.mkdir()
        names = self._memory / "names" / str(number)
        for name, (child, is_folder) in (json.loads(names.read_text()) if names.exists() else {}).items():
            if is_folder:
                self._restore(child, target / name)
            else:
                content = self._memory / "content" / str(child)
                (target / name).write_bytes(content.read_bytes() if content.exists() else b"")
                (target / name).chmod(stat.S_IRUSR | stat.S_IWUSR)
