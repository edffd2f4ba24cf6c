"""One poller for all who wait on the queues of a store: any number of waiters of one process share each look."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Collection, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from airflow_poison.values.clock import Clock, SystemClock
from airflow_poison.values.errors import PoisonError

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.files import Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.watching.conditions import Answer, Condition


T = TypeVar("T")
INTERVAL = 5.0
"""Seconds between two looks, unless a waiter wants it sooner."""
_SOONEST = 0.05
"""Seconds between two looks at least, however many instants fall due."""
_SIDE_BY_SIDE = 16
"""So many queues are looked at at the same time where each has to be asked for."""


@dataclass(frozen=True, slots=True)
class Waits(Generic[T]):
    """What a waiter makes of a look.

    :param result: what it has waited for; None: it goes on waiting.
    :param not_before: when it wants the next look at the latest, because time alone may bring it.
    """

    result: T | None = None
    not_before: datetime | None = None


class Judge(Protocol[T]):
    """Says what a look means to a waiter."""

    def names(self) -> Collection[str]:
        """Return the queues that the waiter watches; asked before each look."""

    def __call__(self, look: Readings) -> Waits[T]:
        """Judge a look. What it raises is raised to the waiter, and to no other."""


@dataclass(frozen=True, slots=True)
class Readings:
    """One look.

    :param sights: what was seen of each queue, or why it could not be seen.
    :param now: when.
    """

    sights: Mapping[str, Reading | PoisonError]
    now: datetime
    _answers: dict[tuple[str, Condition], Answer] = field(default_factory=dict)

    def ask(self, name: str, condition: Condition) -> Answer:
        """Ask a condition of a queue; the same question of many waiters is answered once. Raises the error with which the queue was looked at."""
        sight = self.sights[name]
        if isinstance(sight, PoisonError):
            raise sight
        known = self._answers.get((name, condition))
        if known is None:
            known = self._answers[name, condition] = condition.met(sight.snapshot, self.now)
        return known


@dataclass(frozen=True, slots=True)
class Until:
    """Waits until a condition holds of any queue, or of each.

    Its result: the facts of the queues of which it holds, with ``queue`` in each.
    """

    queue_names: tuple[str, ...]
    condition: Condition
    every: bool = False

    def names(self) -> Collection[str]:
        """Return the queues."""
        return self.queue_names

    def __call__(self, look: Readings) -> Waits[list[dict[str, object]]]:
        """Judge a look. Raises the error of a queue that cannot be looked at."""
        answers = {name: look.ask(name, self.condition) for name in self.queue_names}
        met = [{"queue": name, **answer.facts} for name, answer in answers.items() if answer.met]
        if met and (not self.every or len(met) == len(answers)):
            return Waits(met)
        return Waits(None, min((answer.not_before for answer in answers.values() if answer.not_before is not None), default=None))


@dataclass(eq=False, slots=True)
class _Waiter:
    judge: Judge[Any]
    interval: float
    since: float
    future: asyncio.Future[Any]
    not_before: datetime | None = None


class Poller:
    """Looks at the queues of a store while anybody waits.

    One look an interval serves all waiters; a further one is made when an instant falls due at which a condition may come true. Where a look costs
    requests, many queues are looked at less often than their waiters want (``QueueStore.requests_a_minute``). What blocks runs in a thread. A look
    counts for those only who had come before it began: what was true earlier is not sent.
    """

    def __init__(self, store: QueueStore) -> None:
        self._look, self._requests_a_minute = QueueReader(store), store.requests_a_minute
        self._clock: Clock = SystemClock()
        self._waiters: set[_Waiter] = set()
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")
        self.looks = 0
        """How many looks were made."""

    @property
    def reads(self) -> int:
        """How many times a queue's table was read."""
        return self._look.reads

    async def wait(self, judge: Judge[T], interval: float = INTERVAL, not_before: datetime | None = None) -> T:
        """Wait until the judge has a result, and return it.

        :param interval: seconds between two looks; the shortest of all waiters counts.
        :param not_before: an instant at which time alone may bring a result.
        Raises what the judge raises: for ``Until`` QueueNotFoundError, StoreUnreachableError, TableChangedError.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(judge, interval, loop.time(), loop.create_future(), not_before)
        self._waiters.add(waiter)
        self._came.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="poison-poller", context=contextvars.Context())
        try:
            result: T = await waiter.future
            return result
        finally:
            self._waiters.discard(waiter)
            self._came.set()

    async def _run(self) -> None:
        try:
            while self._waiters:
                await self._pause()
                if self._waiters:
                    await self._look_once()
        except BaseException as error:
            for waiter in self._waiters:
                _give_up(waiter.future, error)
            raise

    async def _pause(self) -> None:
        """Sleep until the next look is due; who comes or goes meanwhile may change when that is."""
        loop = asyncio.get_running_loop()
        while self._waiters:
            self._came.clear()
            left = self._due() - loop.time()
            if left <= 0:
                return
            try:
                async with asyncio.timeout(left):
                    await self._came.wait()
            except TimeoutError:
                return

    def _due(self) -> float:
        """Return when the next look is due, on the loop's clock."""
        soonest, at = self._looked_at + self._least(), self._looked_at + min(waiter.interval for waiter in self._waiters)
        instants = [waiter.not_before for waiter in self._waiters if waiter.not_before is not None]
        if instants:
            wait = (min(instants) - self._clock.now()).total_seconds()
            at = min(at, asyncio.get_running_loop().time() + wait)
        return max(at, soonest)

    def _least(self) -> float:
        """Return the seconds between two looks at least."""
        return _SOONEST if self._requests_a_minute is None else 60.0 * len(self._names()) / self._requests_a_minute

    def _names(self) -> set[str]:
        return {name for waiter in self._waiters for name in waiter.judge.names()}

    async def _look_once(self) -> None:
        began, names = asyncio.get_running_loop().time(), self._names()
        sights = await asyncio.to_thread(self._look.at, names)
        self.looks += 1
        self._looked_at = began
        look = Readings(sights, self._clock.now())
        for waiter in list(self._waiters):
            if waiter.since <= began and not waiter.future.done() and names.issuperset(waiter.judge.names()):
                _judge(waiter, look)


def _judge(waiter: _Waiter, look: Readings) -> None:
    try:
        waits = waiter.judge(look)
    except Exception as error:  # noqa: BLE001  (it is the waiter's)
        waiter.future.set_exception(error)
        return
    waiter.not_before = waits.not_before
    if waits.result is not None:
        waiter.future.set_result(waits.result)


def _give_up(future: asyncio.Future[Any], error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    elif not future.done():
        future.set_exception(error)


_pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Poller]] = WeakKeyDictionary()


def poller_of(store: QueueStore) -> Poller:
    """Return the running loop's poller of a store: the same one for everybody."""
    pollers = _pollers.setdefault(asyncio.get_running_loop(), {})
    return pollers.setdefault(store.uri, Poller(store))


# What is read ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """What a look saw of one queue.

    :param mark: shows, without reading, whether this is still the newest version; see ``QueueTable.mark``.
    """

    table: QueueTable
    snapshot: Snapshot
    mark: Hashable | None


class QueueReader:
    """Looks at queues of a store. Used by one thread at a time.

    A queue without a commit since the last look costs two looks at its folder: nothing is opened, nothing is read. Queues that are
    not asked for any more are forgotten.
    """

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._seen: dict[str, Reading] = {}
        self.reads = 0
        """How many times a queue's table was read."""

    def at(self, names: Collection[str]) -> Mapping[str, Reading | PoisonError]:
        """Return what is to be seen of each queue now, or why it cannot be seen."""
        seen: dict[str, Reading | PoisonError]
        if self._store.requests_a_minute is None:
            seen = {name: self._at(name) for name in names}
        else:
            with ThreadPoolExecutor(_SIDE_BY_SIDE, "poison-look") as pool:
                seen = dict(zip(names, pool.map(self._at, names), strict=True))
        self.reads += sum(sight is not self._seen.get(name) for name, sight in seen.items())
        self._seen = {name: sight for name, sight in seen.items() if isinstance(sight, Reading)}
        return seen

    def _at(self, name: str) -> Reading | PoisonError:
        known = self._seen.get(name)
        if known is not None and _holds(known):
            return known
        try:
            return self._read(name, known)
        except PoisonError as error:
            return error
        except Exception as error:  # noqa: BLE001  (whatever a damaged table makes of a library, the other queues are looked at)
            return PoisonError(f"Queue {name!r} cannot be read ({type(error).__name__}: {error}). A check of the queue tells what is wrong with it.")

    def _read(self, name: str, known: Reading | None) -> Reading:
        if known is not None:
            try:
                return _seen(known.table)
            except PoisonError:
                pass  # opening it shows best what is wrong: perhaps the queue is gone, or was made anew
        return _seen(self._store.open(name, read_only=True))


def _seen(table: QueueTable) -> Reading:
    snapshot = table.snapshot()
    return Reading(table, snapshot, _mark(table, snapshot))


def _holds(sight: Reading) -> bool:
    return sight.mark is not None and _mark(sight.table, sight.snapshot) == sight.mark


def _mark(table: QueueTable, snapshot: Snapshot) -> Hashable | None:
    try:
        return table.mark(snapshot.version)
    except (OSError, PoisonError):  # the next read says what is wrong
        return None
