"""A store for tests and simulation: the log is in memory, the data files are in a temporary folder (Spark reads and writes them as usual)."""

from __future__ import annotations

import shutil
import tempfile
import time
import weakref
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from airflow_poison.store import QueueStore, check_name, data_files, no_such_queue
from airflow_poison.store.data_files import CONTROL
from airflow_poison.store.disk import LocalFolder
from airflow_poison.store.files import Commit, DataFile, LogState, Shortened
from airflow_poison.store.queue_table import QueueTable
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from airflow_poison.store.control import Control


@dataclass(frozen=True, slots=True)
class MemoryState:
    """One version."""

    version: int = -1
    live: Mapping[str, DataFile] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def files(self) -> Sequence[DataFile]:
        return tuple(self.live.values())

    def paths(self, sub_queue: str) -> Sequence[str]:
        return [file.path for file in self.live.values() if file.sub_queue == sub_queue]

    def number(self, name: str) -> int | None:
        return self.numbers.get(name)


class Folder:
    """A temporary folder that goes when it is not needed any more: neither the store nor one of its queues."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="airflow-poison-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


_REMEMBERED = 100
"""So many earlier versions can be looked at."""


class MemoryLog:
    """Versions of one table, compared and swapped under a lock."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder  # kept: a queue may outlive its store
        self._root = str(Path(folder.path, name))
        self._lock = Lock()
        self._newest = MemoryState()
        self._details: list[Mapping[str, object]] = []
        self._past: dict[int, MemoryState] = {}
        self._removals: dict[str, float] = {}

    def identity(self) -> str:
        return self._root

    def load(self) -> MemoryState:
        return self._newest

    def mark(self, version: int) -> Hashable | None:
        return version if version == self._newest.version else None

    def commit(self, base: LogState, commit: Commit) -> bool:
        assert isinstance(base, MemoryState)
        for file in commit.add:
            if not Path(self._root, file.path).is_file():
                raise TableChangedError(data_files.gone(self._root, file.path))
        reach(f"store.{commit.operation}.before_commit")
        removed = {file.path for file in commit.remove}
        with self._lock:
            if base.version != self._newest.version:
                return False
            self._past[base.version] = base
            self._past.pop(base.version - _REMEMBERED, None)
            kept = {path: file for path, file in base.live.items() if path not in removed}
            self._newest = MemoryState(
                version=base.version + 1,
                live=kept | {file.path: file for file in commit.add},
                numbers={**base.numbers, **commit.numbers, **commit.lasting},
            )
            self._details.append({**commit.details, "operation": commit.operation})
            self._removals |= dict.fromkeys(removed, time.time())
        reach(f"store.{commit.operation}.after_commit")
        return True

    def removals(self) -> Mapping[str, float]:
        with self._lock:
            return dict(self._removals)

    def shorten(self, retention: timedelta) -> Shortened:
        """Do nothing: a log in memory has no files, and shows its newest version only."""
        del retention
        return Shortened(oldest=self._newest.version)

    def confirm(self, state: LogState) -> None:
        """Do nothing: a store in memory ends with its process."""

    def files_at(self, version: int) -> Sequence[DataFile] | None:
        state = self._newest if version == self._newest.version else self._past.get(version)
        return None if state is None else state.files

    def details(self, version: int) -> Mapping[str, object] | None:
        return self._details[version]


class MemoryStore(QueueStore):
    """Queues of this process; thread-safe. Kept as long as the store or one of its queues is."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._folder = Folder()
        self._queues: dict[str, QueueTable] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    @property
    def uri(self) -> str:
        """The name under which ``open_store`` finds a shared one."""
        return f"memory://{self._name}"

    def create(self, name: str, control: Control) -> QueueTable:
        check_name(name)
        with self._lock:
            if name not in self._queues:
                root = str(Path(self._folder.path, name))
                log = MemoryLog(self._folder, name)
                place = LocalFolder(root, durable=False)
                row = data_files.write_new(place, CONTROL, 0, data_files.control_to_row(control))
                log.commit(log.load(), Commit("create", add=[row]))
                self._queues[name] = QueueTable(name, place, log)
        return self.open(name)

    def open(self, name: str, *, read_only: bool = False) -> QueueTable:
        check_name(name)
        queue = self._queues.get(name)
        if queue is None:
            raise no_such_queue(self, name)
        if not read_only:
            queue.snapshot()
        return queue

    def names(self) -> Sequence[str]:
        return sorted(self._queues)

    def copied(self, name: str) -> AbstractContextManager[str]:
        return nullcontext(str(Path(self._folder.path, name)))
