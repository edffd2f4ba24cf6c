"""QueueEventTrigger: starts DAGs when something happens to a queue, and keeps the events it has sent in the asset's state store.

All event triggers of a connection share one stream: a notice for each watched queue whenever there is something to look into.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.rules.settings import choice
from airflow_poison.triggers.queue import poller_at
from airflow_poison.values.errors import PoisonError, QueueNotFoundError, SettingError
from airflow_poison.watching.happenings import Happening, News, Position, ripens
from airflow_poison.watching.poller import Readings, Waits

try:
    from airflow.triggers.shared_stream import SharedStreamProducer
except ImportError:  # before Airflow 3.3, which asks for no producer
    SharedStreamProducer = object  # type: ignore[misc, assignment]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Sequence
    from datetime import datetime

    from airflow.triggers.shared_stream import AdvanceItem

    from airflow_poison.watching.poller import Reading


SETTLED = 10.0
"""Seconds after which an event counts as recorded where Airflow does not say when it is (before Airflow 3.3)."""


class QueueEventTrigger(BaseEventTrigger):
    """Fire whenever something happens to a queue; for the watchers of an asset.

    Happenings: ``messages`` (a pass could take messages that it could not take before), ``retry_due`` (a return would move messages that were not due
    before; told at the instant; both not while the queue is halted), ``poisoned``, ``blocked``, ``disabled`` and ``enabled`` (read from what the
    queue has recorded; a queue that people have switched off records nothing, and is found so). A payload has ``event``, ``queue`` and ``key``, and
    facts of the happening.

    With Airflow 3.3 all triggers of a connection share one stream, and sent events are kept in the asset's state store: nothing is lost when the
    triggerer is killed and starts again, and an event that Airflow has not confirmed is sent again with the same key.

    :param queue_name: the queue; it need not exist yet.
    :param event: what to fire at, see above.
    :param conn_id: connection of type ``poison``.
    :param poll_interval: seconds between two looks; the shortest of all triggers on the store counts.
    :param asset: name of the asset that is watched; keeps the watchers of several assets on one queue apart.
    """

    def __init__(
        self,
        queue_name: str,
        event: str = Happening.MESSAGES,
        *,
        conn_id: str = QueueHook.default_conn_name,
        poll_interval: float = 5.0,
        asset: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.queue_name = queue_name
        self.event = choice("event", event, Happening)
        self.conn_id = conn_id
        if not isinstance(poll_interval, int | float) or not poll_interval > 0:
            raise SettingError("poll_interval", poll_interval, "seconds, above 0")
        self.poll_interval = poll_interval
        self.asset = asset

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger's class and arguments."""
        given = {name: getattr(self, name) for name in ("queue_name", "conn_id", "poll_interval", "asset")}
        return f"{__name__}.{type(self).__name__}", {**given, "event": self.event.value}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield events for ever; without the shared stream."""
        alone = Interests()
        async for notice, payloads in self._told(notices(self.conn_id, alone), alone):
            for payload in payloads:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's
            if payloads:
                await asyncio.sleep(SETTLED)
                await notice.recorded()

    def shared_stream_key(self) -> Hashable | None:
        """Return the same key for all triggers of a connection."""
        return "airflow-poison", self.conn_id

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the producer of the connection's notices."""
        return NoticeProducer(kwargs["conn_id"])

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Notice]) -> AsyncIterator[TriggerEvent]:
        """Yield this queue's events, made of the notices of all queues."""
        async for _, payloads in self._told(shared_stream, interests(self.conn_id)):
            for payload in payloads:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's

    async def _told(self, stream: AsyncIterator[Notice], watched: Interests) -> AsyncIterator[tuple[Notice, list[dict[str, Any]]]]:
        """Yield the notices of this queue, each with its event, which is written down before."""
        state = getattr(self, "asset_state_store", None)  # Airflow has none before 3.3
        ledger = WatcherPosition(state, f"airflow_poison.{self.event.value}.{self.queue_name}")
        await ledger.read()
        again = list(ledger.outstanding)
        interest = Interest(self.queue_name, self.event, self.poll_interval)
        watched.add(interest)
        try:
            async for notice in stream:
                if interest not in notice.wanted_by:
                    continue
                payloads = again + await self._news(ledger, notice)
                again = []
                if payloads:
                    notice.when_recorded(partial(ledger.recorded, payloads))
                yield notice, payloads
        finally:
            watched.drop(interest)

    async def _news(self, ledger: WatcherPosition, notice: Notice) -> list[dict[str, Any]]:
        sight = notice.sight
        if isinstance(sight, PoisonError):
            self.log.warning("Queue %r cannot be watched now: %s", self.queue_name, sight)
            if isinstance(sight, QueueNotFoundError):  # whatever a queue of this name records later is new
                await ledger.tell(News((), Position()))
            return []
        told = await asyncio.to_thread(_look_into, self.event, sight, ledger.position, notice.now)
        await ledger.tell(told)
        return list(told.payloads)


def _look_into(event: Happening, sight: Reading, position: Position | None, now: datetime) -> News:
    """Read what is new; in a thread, so that the imports for reading tables do not block other triggers."""
    from airflow_poison.watching.happenings import begin, news

    return news(event, sight.table, sight.snapshot, position or begin(event, sight.snapshot), now)


QUIET_VERSIONS = 50
"""How many versions without news may pass before the position is stored."""


class StateStore(Protocol):
    """What is used of Airflow's ``AssetStateStoreAccessors``."""

    async def aget(self, key: str, default: Any = None) -> Any:
        """Return what is stored under a key."""
        ...

    async def aset(self, key: str, value: Any) -> None:
        """Store a JSON value under a key."""
        ...


class WatcherPosition:
    """The position of one watcher, and the events sent since that Airflow has not confirmed.

    Events are written down before they are sent. A trigger that starts again sends the outstanding ones again with the same keys.

    :param state: the asset's state store; None: everything is forgotten with the process.
    :param key: the watcher's own key in it.
    """

    def __init__(self, state: StateStore | None, key: str) -> None:
        self._state = state
        self._key = key
        self._lock = asyncio.Lock()
        self._stored: Position | None = None
        self.position: Position | None = None
        self.outstanding: list[dict[str, Any]] = []

    async def read(self) -> None:
        """Read what an earlier triggerer has written. Raises SettingError when several assets share the watcher."""
        try:
            told = None if self._state is None else await self._state.aget(self._key)
        except ValueError as error:  # what Airflow says of a watcher of several assets
            raise SettingError("asset", None, "the asset's name, where several assets are watched alike; queue_asset gives it") from error
        if told is not None:
            self.position = self._stored = Position.from_dict(told["position"])
            self.outstanding = list(told["outstanding"])

    async def tell(self, told: News) -> None:
        """Write down the events that are about to be sent, and up to where."""
        self.position = told.position
        self.outstanding += told.payloads
        stored = self._stored
        if told.payloads or stored is None or stored.marks != told.position.marks or told.position.version - stored.version >= QUIET_VERSIONS:
            await self._write()

    async def recorded(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Cross out what Airflow has recorded."""
        keys = {payload["key"] for payload in payloads}
        self.outstanding = [payload for payload in self.outstanding if payload["key"] not in keys]
        await self._write()

    async def _write(self) -> None:
        async with self._lock:
            position = self.position
            assert position is not None
            if self._state is not None:
                await self._state.aset(self._key, {"position": position.to_dict(), "outstanding": self.outstanding})
            self._stored = position


@dataclass(eq=False, slots=True)
class Interest:
    """A watcher of a queue.

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
    """A queue that is due to be read.

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
        """The shortest interval of the watchers; None without watchers."""
        return min((interest.poll_interval for interest in self._all), default=None)

    @property
    def not_before(self) -> datetime | None:
        """When time alone may bring something to anybody, at the earliest."""
        return min((interest.not_before for interest in self._all if interest.not_before is not None), default=None)

    def names(self) -> Collection[str]:
        """Return the queues."""
        return {interest.queue_name for interest in self._all}

    def __call__(self, look: Readings) -> Waits[list[Notice]]:
        """Return a notice for each queue that a watcher wants to read."""
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
        """Note what is recorded. After a failure nothing is noted: the watcher that comes back sends the event again, with the same keys."""
        for item in batch:
            if not item.outcome.failed:
                await item.broker_payload.recorded()
