"""A look at queues of one store: what has not changed since the last look is not read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.errors import PoisonError

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.files import Snapshot
    from airflow_poison.core.store.queue_table import QueueTable


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look saw of one queue.

    :param mark: tells, without reading, whether this is still the newest version; see ``QueueTable.mark``.
    """

    table: QueueTable
    snapshot: Snapshot
    mark: Hashable | None


class Look:
    """Looks at queues of a store. Used by one thread at a time.

    A queue that nobody has committed to since the last look costs two looks at its folder: nothing is opened, nothing is read. Queues that are
    not asked for any more are forgotten.
    """

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._seen: dict[str, Sight] = {}
        self.reads = 0
        """How many times a queue's table was read."""

    def at(self, names: Collection[str]) -> Mapping[str, Sight | PoisonError]:
        """Return what is to be seen of each queue now, or why it cannot be seen."""
        seen: dict[str, Sight | PoisonError] = {name: self._at(name) for name in names}
        self._seen = {name: sight for name, sight in seen.items() if isinstance(sight, Sight)}
        return seen

    def _at(self, name: str) -> Sight | PoisonError:
        known = self._seen.get(name)
        if known is not None and _holds(known):
            return known
        self.reads += 1
        try:
            return self._read(name, known)
        except PoisonError as error:
            return error

    def _read(self, name: str, known: Sight | None) -> Sight:
        if known is not None:
            try:
                return _seen(known.table)
            except PoisonError:
                pass  # opening it tells best what is wrong: perhaps the queue is gone, or was made anew
        return _seen(self._store.open(name, upgrade=False))


def _seen(table: QueueTable) -> Sight:
    snapshot = table.snapshot()
    return Sight(table, snapshot, _mark(table, snapshot))


def _holds(sight: Sight) -> bool:
    return sight.mark is not None and _mark(sight.table, sight.snapshot) == sight.mark


def _mark(table: QueueTable, snapshot: Snapshot) -> Hashable | None:
    try:
        return table.mark(snapshot.version)
    except OSError:  # the next read says what is wrong with the folder
        return None
