"""What can be asked of a queue: conditions, each a pure function of one version of the queue and the time.

All they look at is the control row and the files' statistics: no message is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from airflow_poison.passes.due import due_files, due_postponed, ended_times, next_time
from airflow_poison.passes.halts import ENDPOINTS, Endpoints
from airflow_poison.rules.settings import Check, Settings, check, duration, from_json, optional, to_json, whole_number
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import SettingError
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from airflow_poison.store.files import DataFile, Snapshot

Places = StrEnum("Places", ["MAIN", "RETRY", "POISON", "POSTPONED", "TRANSMISSION"])
"""The sub-queues in which messages may be counted."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a condition says of one version of a queue.

    :param met: whether it holds.
    :param facts: plain values that say why; what a sensor returns.
    :param not_before: when it may come true by time alone, at the earliest; None: not before the queue changes.
    """

    met: bool
    facts: Mapping[str, object] = field(default_factory=dict)
    not_before: datetime | None = None


_CHECKS: Mapping[str, Check] = {
    "count": partial(whole_number, least=1),
    "age": optional(duration),
    "paths": lambda _, paths: tuple(cast("Iterable[str]", paths)),
}


class Condition(ABC):
    """Something that may hold of a queue. Frozen, hashable, with a JSON round trip."""

    __slots__ = ()
    system: ClassVar[str]
    """The condition's name in its JSON form."""
    aliases: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        check(cast("Settings", self), _CHECKS)

    @abstractmethod
    def met(self, snapshot: Snapshot, now: datetime) -> Answer:
        """Say whether the condition holds of this version at this time."""

    def to_dict(self) -> dict[str, object]:
        """Return the condition as JSON values; durations as seconds."""
        return to_json(cast("Settings", self))


@dataclass(frozen=True, slots=True)
class RetryDue(Condition):
    """A return would move something to a queue that receives: messages in ``retry`` whose cycle is over, or what a handler had postponed.

    A file of parked messages falls due as a whole, when the last of them does (spec WCF-30); under ``head_timer`` an earlier head that is not due
    holds back what stands behind it (spec WCF-31).
    """

    system: ClassVar[str] = "retry_due"

    def met(self, snapshot: Snapshot, now: datetime) -> Answer:
        """Facts: ``due``, ``postponed`` (whose time has come), ``waiting`` (in retry, due or not), ``next_due_at`` of messages that are not due yet.

        While the queue is disabled, stopped or faulted it does not hold, and ``state`` says so: what is returned could not be received.
        """
        due = returning(snapshot, now)
        waiting = [file.max_due_at for file in snapshot.files if file.sub_queue in {SubQueue.RETRY, SubQueue.POSTPONED}]
        not_before = min((due_at for due_at in waiting if due_at is not None and due_at > now), default=None)
        facts = {
            "due": _rows(file for file in due if file.sub_queue == SubQueue.RETRY),
            "postponed": _rows(file for file in due if file.sub_queue == SubQueue.POSTPONED),
            "waiting": snapshot.depth(SubQueue.RETRY, now).messages,
            "next_due_at": _text(not_before),
        }
        if not receives(snapshot, SubQueue.MAIN):
            return Answer(met=False, facts=facts | _state(snapshot, SubQueue.MAIN))
        return Answer(bool(due), facts, not_before)


@dataclass(frozen=True, slots=True)
class MessagesAvailable(Condition):
    """Messages wait in a sub-queue.

    Without ``age``: messages that a pass could take now; those that a pass holds do not count, nor does ``main`` while a message blocks the queue,
    nor ``main`` and ``poison`` while their endpoint does not receive or waits for the next probe of an outage. In ``main`` a timer or a lifetime of a
    conversation that has ended counts as one: the next pass puts its message there (spec SB-56). With ``age``: the backlog; whatever waits counts,
    also what is claimed or blocked.

    :param sub_queue: where: ``main``, ``retry``, ``poison``, ``postponed`` (given back by a handler), ``transmission`` (sent to a disabled queue).
    :param count: how many at least.
    :param age: how long ago the oldest of them was sent at least.
    """

    sub_queue: Places | str = Places.MAIN
    count: int = 1
    age: timedelta | None = None
    system: ClassVar[str] = "messages"

    def met(self, snapshot: Snapshot, now: datetime) -> Answer:
        """Facts: ``sub_queue``, ``messages``, ``oldest_enqueued_at``; ``timers_due`` where timers or lifetimes of conversations have ended.

        ``state`` where the endpoint is disabled, stopped or faulted.
        """
        place = SubQueue(str(self.sub_queue))
        if self.age is not None:
            return _aged(snapshot, place, self.count, self.age, now)
        there = _rows(receivable(snapshot, place, now))
        until = snapshot.control.rests_until(place, now)
        oldest = snapshot.depth(place, now).oldest_enqueued_at
        timers = len(ended_times(snapshot, now)) if place is SubQueue.MAIN else 0
        facts: dict[str, object] = {"sub_queue": place.value, "messages": there, "oldest_enqueued_at": _text(oldest)}
        if timers:
            facts["timers_due"] = True
        if not receives(snapshot, place):
            return Answer(met=False, facts=facts | _state(snapshot, place))
        if until is not None:
            return Answer(met=False, facts=facts, not_before=until)
        if there + timers >= self.count:
            return Answer(met=True, facts=facts)
        return Answer(met=False, facts=facts, not_before=free_or_due(snapshot, now, place))


@dataclass(frozen=True, slots=True)
class PoisonPresent(Condition):
    """Messages are in the poison sub-queue.

    :param count: how many at least.
    :param age: how long ago the oldest of them was sent at least. Since when it is poison is not known without reading it.
    """

    count: int = 1
    age: timedelta | None = None
    system: ClassVar[str] = "poison"

    def met(self, snapshot: Snapshot, now: datetime) -> Answer:
        """Facts: ``sub_queue``, ``messages``, ``oldest_enqueued_at``."""
        return _aged(snapshot, SubQueue.POISON, self.count, self.age or timedelta(0), now)


@dataclass(frozen=True, slots=True)
class FilesGone(Condition):
    """A file of messages is not where it was: its messages were moved, removed or received, or some of them; or it was joined with others.

    Files never change. So a waiter for messages to leave needs to read again only when this is so.

    :param sub_queue: where they were.
    :param paths: of the files.
    """

    sub_queue: Places | str = Places.POISON
    paths: tuple[str, ...] = ()
    system: ClassVar[str] = "files_gone"

    def met(self, snapshot: Snapshot, now: datetime) -> Answer:
        """Facts: ``sub_queue``, ``files`` (that are still there)."""
        del now
        there = {file.path for file in snapshot.files if file.sub_queue == self.sub_queue}
        left = sum(path in there for path in self.paths)
        return Answer(left < len(self.paths), {"sub_queue": str(self.sub_queue), "files": left})


@dataclass(frozen=True, slots=True)
class EndpointCondition(Condition):
    """An endpoint of the queue receives, or does not.

    :param sub_queue: whose endpoint: ``main``, the queue's own; ``poison``, the reader of the poison sub-queue; ``any`` of the two.
    """

    sub_queue: Endpoints | str = Endpoints.MAIN
    receives: ClassVar[bool]
    """Which of the two holds."""

    def met(self, snapshot: Snapshot, now: datetime) -> Answer:
        """Facts of the endpoint of which the condition holds, else of the first one: ``sub_queue``, ``state``, ``reason``."""
        del now
        watched = _endpoints(snapshot, str(self.sub_queue))
        place, state, reason = next((endpoint for endpoint in watched if self._holds(endpoint[1])), watched[0])
        return Answer(self._holds(state), {"sub_queue": place.value, "state": state.value, "reason": reason})

    def _holds(self, state: QueueState) -> bool:
        return (state is QueueState.ENABLED) is self.receives


@dataclass(frozen=True, slots=True)
class Halted(EndpointCondition):
    """An endpoint of the queue does not receive any more: it is disabled, stopped or faulted."""

    system: ClassVar[str] = "halted"
    receives: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Enabled(EndpointCondition):
    """An endpoint of the queue receives."""

    system: ClassVar[str] = "enabled"
    receives: ClassVar[bool] = True


_CONDITIONS: Mapping[str, type[Condition]] = {kind.system: kind for kind in (RetryDue, MessagesAvailable, PoisonPresent, FilesGone, Halted, Enabled)}


def condition_from_dict(given: Mapping[str, object]) -> Condition:
    """Return the condition of a JSON form. Raises SettingError."""
    kind = _CONDITIONS.get(str(given.get("system")))
    if kind is None:
        raise SettingError("condition", given.get("system"), ", ".join(_CONDITIONS))
    arguments = from_json(cast("type[Settings]", kind), given)
    if arguments.get("age") is not None:
        arguments["age"] = timedelta(seconds=float(arguments["age"]))
    return kind(**arguments)


def returning(snapshot: Snapshot, now: datetime) -> list[DataFile]:
    """Return the files that a return would move now, files of ``retry`` first."""
    order = str(snapshot.control.policy.get("return_order", "due_time"))
    return due_files(snapshot, now, order) + due_postponed(snapshot, now)


def receivable(snapshot: Snapshot, place: SubQueue, now: datetime) -> list[DataFile]:
    """Return the files of a sub-queue that a pass could take: they are not claimed, or the claim has expired."""
    claimed = {file.path for claim in snapshot.claims if claim.expires_at > now for file in claim.files}
    return [file for file in snapshot.files if file.sub_queue == place and file.path not in claimed]


def receives(snapshot: Snapshot, place: SubQueue) -> bool:
    """Say whether an endpoint that reads a sub-queue receives; the others have no reader, so nothing there waits for an endpoint."""
    return place not in ENDPOINTS or snapshot.control.endpoint(place)[0] is QueueState.ENABLED


def free_or_due(snapshot: Snapshot, now: datetime, place: SubQueue = SubQueue.MAIN) -> datetime | None:
    """Return when the next claim expires, or in ``main`` the next timer or lifetime of a conversation ends; None: never."""
    ends = [claim.expires_at for claim in snapshot.claims if claim.expires_at > now]
    timer = next_time(snapshot, now) if place is SubQueue.MAIN else None
    return min(ends if timer is None else [*ends, timer], default=None)


def _aged(snapshot: Snapshot, place: SubQueue, count: int, age: timedelta, now: datetime) -> Answer:
    depth = snapshot.depth(place, now)
    facts = {"sub_queue": place.value, "messages": depth.messages, "oldest_enqueued_at": _text(depth.oldest_enqueued_at)}
    if depth.messages < count:
        return Answer(met=False, facts=facts)
    if not age or depth.oldest_enqueued_at is None:
        return Answer(not age, facts)
    ripe = depth.oldest_enqueued_at + age
    return Answer(ripe <= now, facts, not_before=None if ripe <= now else ripe)


def _state(snapshot: Snapshot, place: SubQueue) -> dict[str, object]:
    return {"state": snapshot.control.endpoint(place)[0].value}


def _endpoints(snapshot: Snapshot, watched: str) -> Sequence[tuple[SubQueue, QueueState, str]]:
    places = ENDPOINTS if watched == Endpoints.ANY else (SubQueue(watched),)
    return [(place, *snapshot.control.endpoint(place)) for place in places]


def _rows(files: Iterable[DataFile]) -> int:
    return sum(file.rows for file in files)


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
