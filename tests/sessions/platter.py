"""A machine that is lost when its processes are killed: of its journals, what was forced to disk is all that the next one finds.

``watch`` makes a process keep, beside the store, what each forced file and folder held then; ``lose`` puts that back. Names and contents are told
apart: a file whose folder was not forced is gone, however often it was forced itself.
"""

from __future__ import annotations

import json
import os
import shutil
from hashlib import blake2b
from pathlib import Path

from airflow_poison.delivery import platform
from airflow_poison.store import disk

PLATTER, MACHINE = "POISON_TEST_PLATTER", "POISON_TEST_MACHINE"
"""Environment of a process that watches: where it keeps what is forced, and which machine it runs on."""


def watch(platter: Path, machine: str) -> None:
    """Run on a machine of that name, and keep what this process forces to disk."""
    force, force_names, sync = platform.force, platform.force_names, disk.sync

    def forced(descriptor: int) -> None:
        force(descriptor)
        _keep(platter, Path(f"/proc/self/fd/{descriptor}").readlink())

    def forced_names(folder: str | os.PathLike[str]) -> None:
        force_names(folder)
        _keep(platter, Path(folder))

    def synced(path: str | Path) -> None:
        sync(path)
        if Path(path).name == "begun":
            _keep(platter, Path(path))

    platform.force, platform.force_names, disk.sync = forced, forced_names, synced
    platform.machine = lambda: machine


def watch_as_told() -> None:
    """Watch where the environment says so."""
    if PLATTER in os.environ:
        watch(Path(os.environ[PLATTER]), os.environ[MACHINE])


def lose(queue: Path, platter: Path) -> None:
    """Take away what had not been forced to disk of every try; what its folder was called is no matter, a take-over renames it."""
    for journals in queue.glob("_stage/*/*/journal"):
        begun = journals.with_name("begun")
        if begun.exists() and not _place(platter, begun).exists():
            begun.unlink()
        names = _place(platter, journals)
        kept = json.loads(names.read_text()) if names.exists() else []
        for file in list(journals.iterdir()):
            content = _place(platter, file)
            if file.name not in kept:
                file.unlink()
            elif content.exists():
                shutil.copyfile(content, file)
            else:
                file.write_bytes(b"")


def _place(platter: Path, path: Path) -> Path:
    folders = [part.removesuffix(".fenced") for part in path.parts]
    return platter / blake2b("/".join(folders).encode(), digest_size=16).hexdigest()


def _keep(platter: Path, path: Path) -> None:
    place = _place(platter, path)
    beside = place.with_suffix(f".{os.getpid()}")
    if path.is_dir():
        beside.write_text(json.dumps(os.listdir(path)))  # noqa: PTH208  (names only)
    else:
        shutil.copyfile(path, beside)
    beside.rename(place)
