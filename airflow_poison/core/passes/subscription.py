"""Subscription: tell somebody of a queue's recorded events, at least once and in ranges that stay the same when repeated.

The state is durable and lies in the queue itself: two counters of its control row for each subscriber,

* ``told:<name>``: the version of the table up to which the subscriber has been told;
* ``telling:<name>``: the version up to which it is being told now.

``telling`` is committed before anybody is told and becomes ``told`` afterwards. Whoever dies in between leaves it behind, and the next run
tells exactly the same range again: the same events under the same key, so that a receiver can drop what it has seen.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from airflow_poison.core.fault_points import reach
from airflow_poison.core.passes.told import Told

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.events import Event, EventType
    from airflow_poison.core.store.queue_table import QueueTable

FROM_THE_START = -1
QUIET_VERSIONS = 50
"""How many versions without anything to tell are read again before their number is committed."""


@dataclass(frozen=True, slots=True)
class EventRange:
    """The events after version ``since`` up to and with version ``until``.

    :param key: names the range: the same whenever it is told again.
    :param events: read while they are asked for, once: a range may hold millions.
    :param repeated: an earlier run began to tell it and died: what has happened since is another range.
    """

    key: str
    since: int
    until: int
    events: Iterator[Event]
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Subscription:
    """Somebody who is to be told.

    :param name: who, the same in every run.
    :param types: the events to be told of.
    """

    table: QueueTable
    name: str
    types: Collection[EventType]
    clock: Clock

    def begin(self) -> None:
        """Start now, unless it has started before: what lies in the past is not told."""
        snapshot = self.table.snapshot()
        if self._state.read(snapshot.control)[0] is None:
            self._state.write(told=snapshot.version, telling=None)

    @contextmanager
    def range(self) -> Iterator[EventRange]:
        """Give the events that are still to be told. They count as told when the block ends without an error."""
        snapshot = self.table.snapshot()
        told, pending = self._state.read(snapshot.control)
        since = FROM_THE_START if told is None else told
        until = snapshot.version if pending is None else pending
        events = self.table.events(since, until_version=until, types=self.types)
        first = list(islice(events, 1))
        if first and pending is None:
            self._state.write(told=since, telling=until)
        reach("pass.alert.before_telling")
        yield EventRange(f"{self.name}:{since}-{until}", since, until, chain(first, events), repeated=pending is not None)
        reach("pass.alert.after_telling")
        if first or pending is not None or until - since >= QUIET_VERSIONS:
            self._state.write(told=until, telling=None)

    @property
    def _state(self) -> Told:
        return Told(self.table, self.name, self.clock)
