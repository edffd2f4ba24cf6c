"""Trends: how many messages of a queue became poison and how many were settled in each of the last hours, from recorded events and passes.

What was read once is kept: an event file never changes, and a version is looked at once. No body of a message is read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison.passes.history import BY_HAND
from airflow_poison.store import row_groups
from airflow_poison.values.events import EventType
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.schema import EVENT, STANDS_FOR, SubQueue

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.store.row_groups import RowGroups
    from airflow_poison.watching.poller import Reading

HOURS = 24
SLOT = timedelta(minutes=5)
"""How finely what was counted is kept."""
MOST_VERSIONS = 5_000
"""So many versions are looked at for passes, the newest."""
_SLOT_SECONDS: Any = int(SLOT.total_seconds())
_PER_HOUR = timedelta(hours=1) // SLOT
_ARRIVED = EventType.MOVED_POISON.value
_BY_PEOPLE = (EventType.DROPPED.value, EventType.REQUEUED.value)
_ORIGIN, _BY_PLAN = '"origin": "', '"plan": "'
_FROM_POISON, _BY_HAND = f'{_ORIGIN}{SubQueue.POISON.value}"', f'"by": "{BY_HAND}"'
_LEAVING = (EventType.RETURNED.value, *_BY_PEOPLE)


@dataclass(frozen=True, slots=True)
class Trend:
    """The last 24 hours of a queue, the oldest first.

    :param poison: messages that became poison in each hour; ``settled``: that were settled.
    :param growth: by how many more became poison in the last hour than people took out of the poison sub-queue.
    """

    poison: tuple[int, ...]
    settled: tuple[int, ...]
    growth: int

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {"hours": HOURS, "poison": list(self.poison), "settled": list(self.settled)}


@dataclass(frozen=True, slots=True)
class _Counted:
    """The events of one file by slot. ``newest``: the slot of its last one; -1 for an empty file."""

    arrived: Counter[int]
    left: Counter[int]
    newest: int


@dataclass(slots=True)
class _History:
    table: QueueTable
    seen: tuple[int, Hashable] | None = None
    events: dict[str, _Counted] = field(default_factory=dict)
    settled: Counter[int] = field(default_factory=Counter)
    newest: int = -1
    oldest: int = 0
    """Versions ``oldest`` to ``newest`` were looked at for passes."""
    whole: bool = False

    def read(self, sight: Reading, since: int, more: Callable[[], bool]) -> bool:
        """Read what has come since the last look and what is missing of the time before; False when there was no time for all of it."""
        if self.seen == (sight.snapshot.version, sight.mark) and self.whole and sight.mark is not None:
            return True
        self.whole = self._read_events(since, more) and self._read_passes(sight.snapshot.version, since, more)
        self.seen = (sight.snapshot.version, sight.mark)
        return self.whole

    def _read_events(self, since: int, more: Callable[[], bool]) -> bool:
        """Read event files from the newest on, up to one whose events are all too old: those before it are older."""
        paths = sorted((file.path for file in self.table.log.load().files if file.sub_queue == EVENT), reverse=True)
        kept: dict[str, _Counted] = {}
        for path in paths:
            known = self.events.get(path)
            if known is None:
                if not more():
                    self.events |= kept
                    return False
                known = self.events[path] = _counted(self.table, path, since)
            kept[path] = known
            if known.newest < since:
                break
        self.events = kept
        return True

    def _read_passes(self, version: int, since: int, more: Callable[[], bool]) -> bool:
        """Look at the versions that came since, and go on backwards."""
        if self.newest < 0:
            self.newest, self.oldest = version, version + 1
        for number in range(self.newest + 1, version + 1):
            self._note(number)
            self.newest = number
        while self.oldest > 0 and version - self.oldest < MOST_VERSIONS:
            if not more():
                return False
            slot = self._note(self.oldest - 1)
            self.oldest = self.oldest - 1 if slot is None or slot >= since else 0
        return True

    def _note(self, version: int) -> int | None:
        """Count what a pass settled; return its slot, None for a version that says no time, -1 where the log goes no further back."""
        details = self.table.log.details(version)
        if details is None:
            return -1
        result, at = details.get("result"), details.get("at")
        if not isinstance(result, dict) or not isinstance(at, str):
            return None
        slot = slot_of(datetime.fromisoformat(at))
        self.settled[slot] += int((result.get("counts") or {}).get("committed", 0))
        return slot


class Trends:
    """Trends of the queues of a store. Used by one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, _History] = {}

    def of(self, sight: Reading, now: datetime, until: float) -> Trend | None:
        """Return the trend of a queue; None when there is no time to read what is missing, which the next look goes on with.

        :param until: of ``time.monotonic``. Raises TableChangedError, StoreUnreachableError.
        """
        name, slot = sight.table.name, slot_of(now)
        known = self._known.get(name)
        if known is None or known.table is not sight.table or sight.snapshot.version < known.newest:
            known = self._known[name] = _History(sight.table)
        since = slot - HOURS * _PER_HOUR + 1
        if not known.read(sight, since, lambda: time.monotonic() < until):
            return None
        known.settled = Counter({each: count for each, count in known.settled.items() if each >= since})
        arrived, left = _sum(each.arrived for each in known.events.values()), _sum(each.left for each in known.events.values())
        last = range(slot - _PER_HOUR + 1, slot + 1)
        growth = sum(arrived[each] - left[each] for each in last)
        return Trend(_hourly(arrived, since), _hourly(known.settled, since), growth)

    def forget_others(self, names: Iterable[str]) -> None:
        """Forget queues that are not there any more."""
        kept = set(names)
        self._known = {name: known for name, known in self._known.items() if name in kept}


def slot_of(at: datetime) -> int:
    """Return the number of the slot that an instant is in."""
    return int(at.timestamp() // _SLOT_SECONDS)


def _hourly(counts: Mapping[int, int], since: int) -> tuple[int, ...]:
    hours = [0] * HOURS
    for slot, count in counts.items():
        hour = (slot - since) // _PER_HOUR
        if 0 <= hour < HOURS:
            hours[hour] += count
    return tuple(hours)


def _sum(parts: Iterable[Counter[int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    return total


# Events of a file, a batch of rows at a time --------------------------------------------------------------------------------


def _counted(table: QueueTable, path: str, since: int) -> _Counted:
    arrived, left, newest = Counter[int](), Counter[int](), -1
    with row_groups.open_row_groups(table.folder, path) as groups:
        for group in range(len(groups)):
            latest = groups.latest(group, "enqueued_at")
            if latest is not None and (slot := int(latest // _SLOT_SECONDS)) < since:
                newest = max(newest, slot)
                continue
            newest = max(newest, _count(groups, group, arrived, left))
    return _Counted(arrived, left, newest)


def _count(groups: RowGroups, group: int, arrived: Counter[int], left: Counter[int]) -> int:
    """Count the events of a row group; return the last slot. What an event says of itself is read only where some may have left poison."""
    leaving = groups.may_hold(group, "message_type", _LEAVING)
    newest = -1
    for batch in groups.batches([group], ["message_type", "enqueued_at", STANDS_FOR, *(["body"] if leaving else [])]):
        rows = pa.Table.from_batches([batch])
        seconds: Any = rows["enqueued_at"].cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
        slots: Any = pc.divide(seconds, _SLOT_SECONDS)
        events: Any = pc.coalesce(rows[STANDS_FOR], pa.scalar(1, pa.int32()))
        newest = max([newest, *slots.unique().to_pylist()])
        _add(arrived, slots, events, _are(rows, _ARRIVED))
        if leaving:
            _add(left, slots, events, _left(rows))
    return newest


def _left(rows: pa.Table) -> Any:
    """Return which events are of messages that people took out of poison: put back, moved, removed, sent on.

    Those that do not say where the message was are of single messages that people have removed or sent on: most of these were poison.
    """
    came_from = pc.match_substring(rows["body"], _ORIGIN)
    poison = pc.and_(_are(rows, *_LEAVING), pc.match_substring(rows["body"], _FROM_POISON))
    by_hand = pc.and_(pc.match_substring(rows["body"], _BY_HAND), pc.invert(pc.or_(came_from, pc.match_substring(rows["body"], _BY_PLAN))))
    return pc.or_(poison, pc.and_(_are(rows, *_BY_PEOPLE), by_hand))


def _are(rows: pa.Table, *kinds: str) -> Any:
    return pc.is_in(rows["message_type"], pa.array(kinds, pa.string()))


def _add(counts: Counter[int], slots: Any, events: Any, mask: Any) -> None:
    """Count events by slot: events of single messages together, events of whole files one by one."""
    single: Any = pc.is_in(events, pa.array([1], pa.int32()))
    for found in slots.filter(pc.and_(mask, single)).value_counts().to_pylist():
        counts[found["values"]] += found["counts"]
    several = pc.and_(mask, pc.invert(single))
    for slot, number in zip(slots.filter(several).to_pylist(), events.filter(several).to_pylist(), strict=True):
        counts[slot] += number
