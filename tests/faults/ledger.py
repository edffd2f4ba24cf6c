"""What the actors of an episode did, line by line in one file: each line is one write, which no kill can cut and no other line can split."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Line = dict[str, Any]
FOLDER, RUN, QUEUE, PARENT = "POISON_FAULTS_FOLDER", "POISON_FAULTS_RUN", "POISON_FAULTS_QUEUE", "POISON_FAULTS_PARENT"
"""How a handler in a child process hears where its ledger is, whose run it is in, which queue it reads, and that it is a child."""


def path_in(folder: str | Path) -> Path:
    return Path(folder, "ledger.jsonl")


def note(kind: str, **facts: object) -> None:
    """Append a line about this process's run."""
    append(os.environ[FOLDER], kind, int(os.environ[RUN]), **facts)


def append(folder: str, kind: str, run: int, **facts: object) -> None:
    """Append a line; a limit on the size of files, which a run may be under, does not hold here."""
    line = json.dumps({"kind": kind, "run": run, **facts}, default=str).encode() + b"\n"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    descriptor = os.open(path_in(folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Reader:
    """Reads what has been appended since it last looked."""

    def __init__(self, folder: str | Path) -> None:
        self._path, self._offset = path_in(folder), 0

    def news(self) -> Iterator[Line]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self._offset += len(raw)
                yield json.loads(raw)
