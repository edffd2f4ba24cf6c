"""What became of the messages of a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    from airflow_poison.core.events import Event
    from airflow_poison.core.failures import Failure
    from airflow_poison.core.passes.runs import ReceiveResult
    from airflow_poison.core.store.memory import MemoryStore
    from airflow_poison.core.store.queue_table import QueueTable


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the handler.

    :param at: when, on the virtual clock, UTC.
    :param abort_count: what the handler saw.
    :param move_count: what the handler saw.
    :param error: what it raised; None when it returned.
    """

    at: datetime
    abort_count: int
    move_count: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message.

    :param place: the sub-queue where it is (``main``, ``retry``, ``poison``, ``postponed``), ``dead_letter`` (the sender's), the name of the queue
        that it was sent to, or what became of it: ``processed``, ``dropped``, ``lost`` (consumed before its handler failed). The words are those
        of ``replay``.
    :param abort_count: its rollbacks since the last move; 0 when it has left the queue.
    :param move_count: its moves between main and the sub-queues; 0 when it has left the queue.
    :param calls: the calls of the handler, in order.
    :param last_error: the failure of its last delivery; None when that succeeded.
    """

    lookup_id: int
    body: bytes
    place: str
    abort_count: int
    move_count: int
    calls: tuple[Call, ...]
    last_error: Failure | None

    @property
    def deliveries(self) -> int:
        """Calls of the handler."""
        return len(self.calls)

    def __str__(self) -> str:
        error = f", last error {self.last_error.type}: {self.last_error.text}" if self.last_error else ""
        return f"message {self.lookup_id} {self.body[:40]!r}: {self.place} after {self.deliveries} deliveries{error}"


@dataclass(frozen=True, slots=True)
class Received:
    """The result of ``receive``. Iterates over the outcomes, in the order in which the messages were given.

    :param passes: the result of each pass.
    :param events: what was recorded, ``DELIVERED``, ``COMMITTED`` and ``ROLLED_BACK`` among it.
    :param table: the queue, for a look inside.
    :param store: its store, which also has the dead-letter queues.
    :param elapsed: time that went by on the virtual clock.
    :param endless: it was stopped at its limit of passes and would have gone on.
    """

    outcomes: tuple[Outcome, ...]
    passes: tuple[ReceiveResult, ...]
    events: tuple[Event, ...]
    table: QueueTable
    store: MemoryStore
    elapsed: timedelta
    endless: bool = False

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, number: int) -> Outcome:
        return self.outcomes[number]

    @property
    def places(self) -> list[str]:
        """The place of each message."""
        return [outcome.place for outcome in self.outcomes]

    @property
    def deliveries(self) -> int:
        """Calls of the handler, all together."""
        return sum(outcome.deliveries for outcome in self.outcomes)

    @property
    def halted(self) -> str | None:
        """How the last pass halted the queue (``faulted`` …); None when the queue goes on."""
        halt = self.passes[-1].halted if self.passes else None
        return halt["how"] if halt else None

    def __str__(self) -> str:
        lines = [str(outcome) for outcome in self.outcomes]
        if self.halted:
            lines.append(f"The queue is {self.halted}.")
        if self.endless:
            lines.append(f"Stopped after {len(self.passes)} passes; it would go on.")
        return "\n".join(lines)
