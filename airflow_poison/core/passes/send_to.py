"""Send to: move messages to another queue by hand, for example from a dead-letter queue to where they came from."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from airflow_poison.core.errors import InputError, SettingError
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.fault_points import reach
from airflow_poison.core.message import DESTINATION, OUTBOX, SubQueue
from airflow_poison.core.passes.messages import Change, Chosen, with_columns
from airflow_poison.core.passes.relay import ORIGIN_QUEUE, relay
from airflow_poison.core.passes.remove import BY_HAND

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable

_FROM = frozenset(SubQueue) - {SubQueue.TRANSMISSION}


@dataclass(frozen=True, slots=True)
class SendToResult:
    """What was sent to other queues.

    :param sent: messages.
    :param to: how many to each queue.
    """

    queue: str
    sent: int
    to: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self) | {"to": dict(self.to)}


def send_to(
    table: QueueTable, store: QueueStore, clock: Clock, lookup_ids: Collection[int], queue: str | None = None, *, run: str | None = None
) -> SendToResult:
    """Move messages to another queue of the store, each exactly once, with abort count 0.

    One commit puts them into the queue's outbox, from where they are sent on at once; when this run dies in between, the next one or the next
    pass over the queue does that.

    :param queue: where to; it must exist. None: to the queue that each came from, as its property ``poison.origin_queue`` says.
    :param run: a key: what a call with the same key has sent before, and is not there now, is no error.
    Raises QueueNotFoundError, QueueNameError, SettingError for the queue itself, InputError for messages that do not say where they came
    from, MessageNotFoundError, MessageClaimedError; then nothing was moved.
    """
    relay(store, table, clock)
    now = clock.now()
    targets = _Targets(table.name, store, queue)

    def become(rows: pa.Table) -> pa.Table:
        cells = zip(rows["properties"].to_pylist(), targets.of(rows), strict=True)
        return with_columns(rows, sub_queue=OUTBOX, properties=[list({**dict(cell or ()), DESTINATION: target}.items()) for cell, target in cells])

    def told(rows: pa.Table) -> Iterator[Event]:
        numbers = (rows[name].to_pylist() for name in ("lookup_id", "abort_count", "move_count"))
        for lookup_id, abort_count, move_count, target in zip(*numbers, targets.of(rows), strict=True):
            yield Event(EventType.REQUEUED, now, lookup_id, abort_count or 0, move_count or 0, {"place": target, "by": BY_HAND})

    sent = targets.of(Change(Chosen.ids(lookup_ids), become, told, _FROM, run).commit(table, now))
    reach("pass.send_to.before_relay")
    relay(store, table, clock)
    return SendToResult(table.name, len(sent), dict(sorted(Counter(sent).items())))


@dataclass(slots=True)
class _Targets:
    """Where messages go: one queue for all, or each to its own."""

    origin: str
    store: QueueStore
    queue: str | None
    known: set[str] = field(default_factory=set)

    def of(self, rows: pa.Table) -> list[str]:
        """Return each message's queue."""
        wished = [self.queue or dict(cell or ()).get(ORIGIN_QUEUE) or "" for cell in rows["properties"].to_pylist()]
        lost = [number for number, name in zip(rows["lookup_id"].to_pylist(), wished, strict=True) if not name]
        if lost:
            raise InputError(
                f"Messages {lost[:20]} of queue {self.origin!r} have no property {ORIGIN_QUEUE!r}: say which queue they go to. Nothing was moved."
            )
        for name in set(wished) - self.known:
            self._check(name)
        return wished

    def _check(self, name: str) -> None:
        """Refuse a queue that is not there: a typing error must not make one."""
        if name == self.origin:
            raise SettingError("queue", name, "another queue than the one that the messages are in")
        self.store.open(name)
        self.known.add(name)
