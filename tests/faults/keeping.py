"""Keeps for the checker what verbs remove: data files and log entries get a second name outside of the store before their own goes.

What is removed is noted with the time at which it goes, so the checker can hold it against the retention. What is noted may still be there: the
process can be killed in between.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.ledger import note

_unlink, _link, _replace, _makedirs = os.unlink, os.link, os.replace, os.makedirs
"""As they were before a fault takes their place."""


def kept_in(folder: str | Path) -> Path:
    return Path(folder, "kept")


def damaged_in(folder: str | Path) -> Path:
    """Return where what people have taken out of the store is."""
    return Path(folder, "damaged")


def keep(folder: str) -> None:
    """Let this process remove nothing of an episode's store that it has not put aside."""
    store, kept = Path(folder, "store"), kept_in(folder)

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is None and (name := _name_in(store, path)) is not None:
            _put_aside(Path(path), kept / name)
            note("removed", queue=name.parts[0], path=str(Path(*name.parts[1:])), at=time.time())
        _unlink(path, dir_fd=dir_fd)

    os.unlink = unlink
    os.remove = unlink


def _name_in(store: Path, path: Any) -> Path | None:
    """Return the name below the store of a data file of a table or an entry of its log; None for anything else."""
    found = Path(os.fsdecode(path))
    if not found.is_relative_to(store):
        return None
    name = found.relative_to(store)
    return name if is_history(name) else None


def is_history(name: Path) -> bool:
    """Whether a name below the store is that of a data file of a table or of an entry of its log."""
    entry = name.parts[1:2] == ("_delta_log",) and name.suffix == ".json" and name.stem.isdigit()
    return entry or (len(name.parts) > 1 and name.parts[1].startswith("sub_queue=") and name.suffix == ".parquet")


def _put_aside(path: Path, kept: Path) -> None:
    beside = kept.with_name(f".{kept.name}-{os.getpid()}")
    with suppress(FileNotFoundError):  # another process is removing it, too
        _makedirs(kept.parent, exist_ok=True)
        _link(path, beside)
        _replace(beside, kept)
        with suppress(FileNotFoundError):  # both were names of one file: a rename does nothing then
            _unlink(beside)
