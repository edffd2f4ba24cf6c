"""Triggers: what waits on queues in Airflow's triggerer, one look at a store for all of them.

QueueTrigger: what a deferred sensor waits with, and the poller of a connection's store that all triggers share.

PlanTrigger: what a deferred redrive waits with, until something can be done for its plan.

QueueEventTrigger: starts DAGs when something happens to a queue, and keeps the events it has sent in the asset's state store.

All event triggers of a connection share one stream: a notice for each watched queue whenever there is something to look into.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.rules.settings import choice
from airflow_poison.values.errors import PlanStateError, PoisonError, QueueNotFoundError, SettingError
from airflow_poison.watching.conditions import condition_from_dict
from airflow_poison.watching.poller import Poller, Reading, Readings, Until, Waits, poller_of
from airflow_poison.watching.queue_events import Happening, News, Position, begin, news, ripens

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable


class QueueTrigger(BaseTrigger):
    """Wait until a condition holds of a queue, of any of several, or of each.

    All triggers of a triggerer share one look at a store in each interval, and the next one is made at the instant at which a condition may come
    true by time alone. The event's payload is ``{"met": [facts, ...]}``, or ``{"error": name, "message": text}`` when a queue cannot be looked at.

    :param queue_names: the queues.
    :param condition: what is waited for, as ``Condition.to_dict()`` gives it.
    :param every: wait until it holds of each queue; else any one is enough.
    :param conn_id: connection of type ``poison``.
    :param poll_interval: seconds between two looks; the shortest of all triggers on the store counts.
    """

    def __init__(
        self,
        queue_names: Sequence[str],
        condition: Mapping[str, object],
        *,
        every: bool = False,
        conn_id: str = QueueHook.default_conn_name,
        poll_interval: float = 5.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.queue_names = tuple(queue_names)
        self.condition = dict(condition)
        self.every = every
        self.conn_id = conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger's class and arguments."""
        given = {name: getattr(self, name) for name in ("condition", "every", "conn_id", "poll_interval")}
        return f"{__name__}.{type(self).__name__}", {**given, "queue_names": list(self.queue_names)}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when the condition holds, or when a queue cannot be looked at."""
        try:
            poller = await poller_at(self.conn_id)
            until = Until(self.queue_names, condition_from_dict(self.condition), self.every)
            met = await poller.wait(until, self.poll_interval)
        except PoisonError as error:
            yield TriggerEvent({"error": type(error).__name__, "message": str(error)})  # type: ignore[no-untyped-call]  # Airflow's
        else:
            yield TriggerEvent({"met": met})  # type: ignore[no-untyped-call]  # Airflow's


REMEMBERED = 60.0
"""Seconds for which what a connection says is remembered: a burst of triggers asks for it once."""

Opened = tuple[float, "asyncio.Task[QueueStore]"]
_opened: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Opened]] = WeakKeyDictionary()


async def poller_at(conn_id: str) -> Poller:
    """Return the process's poller of a connection's store.

    Raises AirflowNotFoundException for a connection that is not defined, SettingError, StoreUnreachableError.
    """
    loop = asyncio.get_running_loop()
    opened = _opened.setdefault(loop, {})
    since, task = opened.get(conn_id, (float("-inf"), None))
    if task is None or loop.time() - since > REMEMBERED or (task.done() and (task.cancelled() or task.exception() is not None)):
        opening = asyncio.to_thread(lambda: QueueHook(conn_id).store())
        task = loop.create_task(opening, context=contextvars.Context())
        opened[conn_id] = (loop.time(), task)
    return poller_of(await asyncio.shield(task))


class PlanTrigger(BaseTrigger):
    """Wait until something can be done for a plan: a pass has ended, a canary is decided, the plan was resumed, or it has ended.

    The event's payload is ``{"plan": id}``, or ``{"error": name, "message": text}`` when the queue cannot be looked at.

    :param queue_name: the queue.
    :param plan: the plan's id.
    :param version: of the queue, at which nothing could be done; -1: not known.
    :param not_before: nothing is done before this instant, ISO 8601: the plan has a rate; None: at once.
    :param who: the task, as events name it; the plan is paused when the task is ended by a person.
    :param conn_id: connection of type ``poison``.
    :param poll_interval: seconds between two looks at the queue's version.
    """

    def __init__(
        self,
        queue_name: str,
        plan: str,
        *,
        version: int = -1,
        not_before: str | None = None,
        who: str = "",
        conn_id: str = QueueHook.default_conn_name,
        poll_interval: float = 5.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.queue_name = queue_name
        self.plan = plan
        self.version = version
        self.not_before = not_before
        self.who = who
        self.conn_id = conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger's class and arguments."""
        names = ("queue_name", "plan", "version", "not_before", "who", "conn_id", "poll_interval")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when something can be done, or when the queue cannot be looked at."""
        from airflow_poison.desk.applying import waits_at

        try:
            if self.not_before is not None:
                await asyncio.sleep(max(0.0, (datetime.fromisoformat(self.not_before) - datetime.now(UTC)).total_seconds()))
            poller, table = await poller_at(self.conn_id), await asyncio.to_thread(self._table)
            version: int | None = self.version
            while version is not None:
                await poller.wait(_OtherVersion(self.queue_name, version), self.poll_interval)
                version = await asyncio.to_thread(waits_at, table, self.plan)
        except PoisonError as error:
            yield TriggerEvent({"error": type(error).__name__, "message": str(error)})  # type: ignore[no-untyped-call]  # Airflow's
        else:
            yield TriggerEvent({"plan": self.plan})  # type: ignore[no-untyped-call]  # Airflow's

    async def on_kill(self) -> None:
        """Pause the plan, because its task was ended."""
        await asyncio.to_thread(pause_when_ended, QueueHook(self.conn_id), self.queue_name, self.plan, self.who)

    def _table(self) -> QueueTable:
        return QueueHook(self.conn_id).queue(self.queue_name).reading


def pause_when_ended(hook: QueueHook, queue_name: str, plan: str, who: str) -> None:
    """Pause a plan, as its task was ended; nothing happens when the plan has ended, too."""
    from airflow_poison.queue import Queue

    try:
        Queue(hook.queues(), queue_name, who).pause(plan, "its task was ended")
    except PlanStateError as error:  # it has ended, or was stopped
        hook.log.info("%s", error)


@dataclass(frozen=True, slots=True)
class _OtherVersion:
    """Waits until a queue has another version than one."""

    queue_name: str
    version: int

    def names(self) -> Collection[str]:
        return (self.queue_name,)

    def __call__(self, look: Readings) -> Waits[bool]:
        """Judge a look. Raises the error of a queue that cannot be looked at."""
        sight = look.sights[self.queue_name]
        if isinstance(sight, Exception):
            raise sight
        return Waits(None if sight.snapshot.version == self.version else True)


try:
    from airflow.triggers.shared_stream import SharedStreamProducer
except ImportError:  # before Airflow 3.3, which asks for no producer
    SharedStreamProducer = object  # type: ignore[misc, assignment]

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import AdvanceItem


SETTLED = 10.0
"""Seconds after which an event counts as recorded where Airflow does not say when it is (before Airflow 3.3)."""


class QueueEventTrigger(BaseEventTrigger):
    """Fire whenever something happens to a queue; for the watchers of an asset.

    Happenings: ``messages`` (a pass could take messages that it could not take before), ``retry_due`` (a return would move messages that were not due
    before; sent at the instant; both not while the queue is halted), ``poisoned``, ``blocked``, ``disabled`` and ``enabled`` (read from what the
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
        async for notice, payloads in self._watched(notices(self.conn_id, alone), alone):
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
        async for _, payloads in self._watched(shared_stream, interests(self.conn_id)):
            for payload in payloads:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's

    async def _watched(self, stream: AsyncIterator[Notice], watched: Interests) -> AsyncIterator[tuple[Notice, list[dict[str, Any]]]]:
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
                await ledger.write(News((), Position()))
            return []
        found = await asyncio.to_thread(_look_into, self.event, sight, ledger.position, notice.now)
        await ledger.write(found)
        return list(found.payloads)


def _look_into(event: Happening, sight: Reading, position: Position | None, now: datetime) -> News:
    """Read what is new; in a thread, so that the imports for reading tables do not block other triggers."""
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
            stored = None if self._state is None else await self._state.aget(self._key)
        except ValueError as error:  # what Airflow says of a watcher of several assets
            raise SettingError("asset", None, "the asset's name, where several assets are watched alike; queue_asset gives it") from error
        if stored is not None:
            self.position = self._stored = Position.from_dict(stored["position"])
            self.outstanding = list(stored["outstanding"])

    async def write(self, found: News) -> None:
        """Write down the events that are about to be sent, and up to where."""
        self.position = found.position
        self.outstanding += found.payloads
        stored = self._stored
        if found.payloads or stored is None or stored.marks != found.position.marks or found.position.version - stored.version >= QUIET_VERSIONS:
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
    :param seen: the mark, or the version, that was last looked into, or the text of the error; None: nothing yet.
    :param not_before: when time alone may bring something, at the earliest.
    """

    queue_name: str
    happening: Happening
    poll_interval: float
    seen: Hashable = None
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


def _what(sight: Reading | PoisonError) -> Hashable:
    if isinstance(sight, PoisonError):
        return str(sight)
    return sight.snapshot.version if sight.mark is None else sight.mark


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
