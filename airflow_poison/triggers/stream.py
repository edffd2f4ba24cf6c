"""The stream that all event triggers of a connection share: a notice for each watched queue whenever there is something to look into."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_poison.core.errors import PoisonError
from airflow_poison.core.watching.news import Happening, ripens
from airflow_poison.core.watching.poller import Readings, Waits
from airflow_poison.triggers.queue import poller_at

try:
    from airflow.triggers.shared_stream import SharedStreamProducer
except ImportError:  # before Airflow 3.3, which asks for no producer
    SharedStreamProducer = object  # type: ignore[misc, assignment]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Sequence
    from datetime import datetime

    from airflow.triggers.shared_stream import AdvanceItem

    from airflow_poison.core.watching.poller import Reading


@dataclass(eq=False, slots=True)
class Interest:
    """Somebody who watches a queue.

    :param happening: what it is about.
    :param seen: the version that was last looked into, or the text of the error; None: nothing yet.
    :param not_before: when time alone may bring something, at the earliest.
    """

    queue_name: str
    happening: Happening
    poll_interval: float
    seen: int | str | None = None
    not_before: datetime | None = None

    def wants(self, sight: Reading | PoisonError, now: datetime) -> bool:
        """Say whether there is something to look into."""
        if _what(sight) != self.seen:
            return True
        return self.not_before is not None and self.not_before <= now

    def looked(self, sight: Reading | PoisonError, now: datetime) -> None:
        """Note what was looked into."""
        self.seen = _what(sight)
        self.not_before = None if isinstance(sight, PoisonError) else ripens(self.happening, sight.snapshot, now)


@dataclass(eq=False, slots=True)
class Notice:
    """A queue that somebody should look into.

    :param wanted_by: who wanted it; the others pass it over.
    """

    queue_name: str
    sight: Reading | PoisonError
    now: datetime
    wanted_by: frozenset[Interest]
    _when_recorded: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def when_recorded(self, then: Callable[[], Awaitable[None]]) -> None:
        """Have something done when Airflow has recorded every event that was made of this notice."""
        self._when_recorded.append(then)

    async def recorded(self) -> None:
        """Do what was to be done when the events are recorded."""
        for then in self._when_recorded:
            await then()


class Interests:
    """Who watches which queues of a store; a judge for the poller."""

    def __init__(self) -> None:
        self._all: set[Interest] = set()

    def add(self, interest: Interest) -> None:
        """Begin to watch."""
        self._all.add(interest)

    def drop(self, interest: Interest) -> None:
        """Watch no more."""
        self._all.discard(interest)

    @property
    def poll_interval(self) -> float | None:
        """The shortest interval that anybody wants; None when nobody watches."""
        return min((interest.poll_interval for interest in self._all), default=None)

    @property
    def not_before(self) -> datetime | None:
        """When time alone may bring something to anybody, at the earliest."""
        return min((interest.not_before for interest in self._all if interest.not_before is not None), default=None)

    def names(self) -> Collection[str]:
        """Return the queues."""
        return {interest.queue_name for interest in self._all}

    def __call__(self, look: Readings) -> Waits[list[Notice]]:
        """Return a notice for each queue that somebody wants to look into."""
        wanted: dict[str, set[Interest]] = {}
        for interest in self._all:
            if interest.wants(look.sights[interest.queue_name], look.now):
                wanted.setdefault(interest.queue_name, set()).add(interest)
        if not wanted:
            return Waits(None, self.not_before)
        notices = [Notice(name, look.sights[name], look.now, frozenset(by)) for name, by in wanted.items()]
        for notice in notices:
            for interest in notice.wanted_by:
                interest.looked(notice.sight, notice.now)
        return Waits(notices)


async def notices(conn_id: str, watched: Interests) -> AsyncIterator[Notice]:
    """Yield notices for ever: of every queue that is watched. Ends only with an error of the connection."""
    poller = await poller_at(conn_id)
    while True:
        interval = watched.poll_interval
        if interval is None:
            await asyncio.sleep(0.1)
            continue
        for notice in await poller.wait(watched, interval, watched.not_before):
            yield notice


_interests: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Interests]] = WeakKeyDictionary()


def interests(conn_id: str) -> Interests:
    """Return who watches queues of a connection in the running loop with the shared stream."""
    return _interests.setdefault(asyncio.get_running_loop(), {}).setdefault(conn_id, Interests())


def _what(sight: Reading | PoisonError) -> int | str:
    return str(sight) if isinstance(sight, PoisonError) else sight.snapshot.version


class NoticeProducer(SharedStreamProducer):
    """Supplies the notices of a connection's queues.

    :param conn_id: connection of type ``poison``.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    async def open_stream(self) -> AsyncIterator[tuple[Notice, Notice]]:
        """Yield each notice, with itself as what is handed back."""
        async for notice in notices(self._conn_id, interests(self._conn_id)):
            yield notice, notice

    def get_advance_lane(self, broker_payload: Notice) -> Hashable:
        """Let no queue wait for another."""
        return broker_payload.queue_name

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Note what is recorded. After a failure nothing is noted: the watcher that comes back tells it again, with the same keys."""
        for item in batch:
            if not item.outcome.failed:
                await item.broker_payload.recorded()
