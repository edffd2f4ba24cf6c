"""A disk of a few megabytes of its own, that a test can fill to the last page."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = 4_096


@dataclass(frozen=True)
class Disk:
    """A mounted file system.

    :param root: where it is mounted.
    """

    root: Path

    @property
    def free(self) -> int:
        """Pages that are free."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize // PAGE

    def fill(self, but: int) -> None:
        """Leave so many pages free."""
        with (self.root / "ballast").open("wb") as file:
            size = max(self.free - but, 0) * PAGE
            if size:
                os.posix_fallocate(file.fileno(), 0, size)

    def make_room(self) -> None:
        """Take the ballast away."""
        (self.root / "ballast").unlink()

    def empty(self) -> None:
        """Remove everything."""
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def mounted(place: Path) -> Iterator[Disk]:
    """Mount a disk, as a fixture does; skips where this user may not."""
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk of its own can be mounted here: {done.stderr.strip()}")
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
