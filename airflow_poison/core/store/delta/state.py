"""Versions of a Delta table in memory, and how the next look goes on from the last one instead of reading the whole log again.

delta-rs brings a loaded table up to date *in place*. So a loaded table belongs to one version's state alone, as long as anybody has that state:
one that moved on under somebody's feet would let a commit through that was planned on an older version. Only when nobody has the state any more
does the next look get its table; threads and nested looks find none then, and load their own.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.store.delta import actions, foreign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from airflow_poison.core.store.files import DataFile


@dataclass(frozen=True, slots=True)
class EntryMark:
    """What tells a version's entry in the log from another one that took its place (a torn one was taken away, a backup put back)."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, root: str, version: int) -> EntryMark | None:
        """Return the mark of an entry; None when it is not there: cleaned up behind a checkpoint."""
        try:
            found = foreign.json_path(root, version).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(slots=True)
class Loaded:
    """A loaded table.

    :param entry: the mark of its version's entry, looked at right after it was loaded.
    :param files: the live files, when somebody has asked for them.
    """

    table: DeltaTable
    entry: EntryMark | None
    files: tuple[DataFile, ...] | None = None


class DeltaState:
    """One version of a Delta table.

    :ivar damaged: behind it in the log lies what does not count, in the way of the next commit.
    """

    def __init__(self, loaded: Loaded, *, damaged: bool = False) -> None:
        self._loaded = loaded
        self.version: int = loaded.table.version()
        self.damaged = damaged

    @property
    def table(self) -> DeltaTable:
        """What delta-rs has loaded; it stays at this version as long as the state is used."""
        return self._loaded.table

    @property
    def has_entry(self) -> bool:
        """Whether the log had the version's own entry when it was loaded."""
        return self._loaded.entry is not None

    @property
    def is_empty(self) -> bool:
        """Whether the version's entry has no content: delta-rs takes it for a version in which nothing happened."""
        return self._loaded.entry is not None and self._loaded.entry.size == 0

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Every live file; listed when first asked for (a send never asks)."""
        if self._loaded.files is None:
            self._loaded.files = actions.files_of(self.table)
        return self._loaded.files

    def paths(self, sub_queue: str) -> Sequence[str]:
        """Return the paths of the live files of one partition; the log picks them, so a table of many files costs no more."""
        uris = self.table.file_uris(file_pruning_predicate=f"sub_queue = '{sub_queue}'")
        return [uri[uri.rindex(f"sub_queue={sub_queue}/") :] for uri in uris]

    def number(self, name: str) -> int | None:
        """Return the version of an application transaction."""
        return self.table.transaction_version(name)


class Looks:
    """Looks at the newest version of one table. Used by several threads."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._idle: deque[Loaded] = deque(maxlen=1)

    def newest(self) -> DeltaState:
        """Return the newest version, from the last look where that still holds. Raises DeltaError, OSError."""
        return self._state(self._brought_up_to_date() or self._afresh())

    def _state(self, loaded: Loaded) -> DeltaState:
        state = DeltaState(loaded)
        weakref.finalize(state, self._idle.append, loaded).atexit = False
        return state

    def _brought_up_to_date(self) -> Loaded | None:
        """Return the idle table at the newest version; None when there is none, or when what it rests on is not as it was.

        Raises DeltaError for a torn entry, a log that was shortened at this moment, an older copy: the whole log, looked at next, tells which.
        """
        try:
            loaded = self._idle.pop()
        except IndexError:
            return None
        before = loaded.table.version()
        if loaded.entry is None or EntryMark.of(self._root, before) != loaded.entry:
            return None
        loaded.table.update_incremental()
        after = loaded.table.version()
        return loaded if after == before else Loaded(loaded.table, EntryMark.of(self._root, after))

    def _afresh(self) -> Loaded:
        from deltalake import DeltaTable

        table = DeltaTable(self._root)
        return Loaded(table, EntryMark.of(self._root, table.version()))
