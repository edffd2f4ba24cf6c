"""An endpoint whose queue has conversations: what its decisions do to them (spec SB-30, SB-54, SB-55, SB-58)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison.core.conversations.arrivals import BY_CONVERSATION
from airflow_poison.core.delivery.ends import Stay
from airflow_poison.core.delivery.sessions.child import Call
from airflow_poison.core.delivery.sessions.endpointhost import EndpointHost
from airflow_poison.core.events import EventType
from airflow_poison.core.fault_points import reach
from airflow_poison.core.policies.decisions import Block, Dispose, Disposition, Halt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.core.conversations.endpoint import Change
    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.delivery.loop import Source
    from airflow_poison.core.delivery.sessions.dialogs import Dialogs
    from airflow_poison.core.delivery.sessions.rows import BatchEntry, Rows
    from airflow_poison.core.failures import Failure
    from airflow_poison.core.policies.decisions import Deliver, Park
    from airflow_poison.core.policies.policy import Receiver


class SingleReceives:
    """An open endpoint whose transactions receive one message each: what a rolled-back one did to its conversation concerns no other message."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def batch_size(self) -> int:
        """One message."""
        return 1

    def __getattr__(self, name: str) -> Any:
        """Ask the endpoint everything else."""
        return getattr(self._receiver, name)


class DialogHost(EndpointHost):
    """Journals what deliveries do in conversations before their words say that they are committed.

    :param dialogs: the conversations.
    """

    def __init__(self, dialogs: Dialogs, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._dialogs = dialogs
        self._done: dict[int, Change | None] = {}
        self._consumed: set[int] = set()

    def received(self, source: Rows) -> Source[BatchEntry]:
        """Leave out what conversations discard."""
        return _NotDiscarded(source, self)

    def discards(self, entry: BatchEntry) -> bool:
        """Receive a message from its conversation; whether that has discarded it."""
        discarded = self._dialogs.receive(entry.row, self.now())
        if discarded is None:
            return False
        details = {"by": BY_CONVERSATION, "why": discarded.why}
        super().ended(entry, Dispose(Disposition.DROP, entry.counts, (EventType.DROPPED,), details=details), None)
        return True

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Write down what was done, store the commit, and only then let others see it."""
        changes = [self._dialogs.written(entry.row, self._done.pop(entry.row, None)) for entry in entries]
        super().committed(entries)
        reach("delivery.dialogs.after_word")
        for change in changes:
            self._dialogs.committed(change)

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Forget what was done."""
        for entry in entries:
            self._done.pop(entry.row, None)
        super().rolled_back(entries, culprit, failure)

    def back_at_savepoint(self, entry: BatchEntry) -> None:
        """Keep what was done since; the message is back."""
        self._dialogs.back_at_savepoint(entry.row, self._done.pop(entry.row, None))
        super().back_at_savepoint(entry)

    def ended(self, entry: BatchEntry, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """Tell the conversation that the message leaves."""
        if (for_good := _leaves_for_good(decision)) is not None:
            self._dialogs.left(entry.row, for_good=for_good)
        super().ended(entry, decision, failure)

    def postponed(self, entry: BatchEntry, failure: Failure) -> None:
        """Tell the conversation that the message leaves for a while."""
        self._dialogs.left(entry.row, for_good=False)
        super().postponed(entry, failure)

    def resumed(self, row: int, decision: End) -> None:
        """Tell the conversation what it may not know of an earlier try."""
        if (for_good := _leaves_for_good(decision)) is not None:
            self._dialogs.had_left(row, for_good=for_good, now=self.now())
        super().resumed(row, decision)

    def result(self, entry: BatchEntry) -> Failure | None:
        """Wait for the session; a message that was consumed before its delivery is gone, so what the delivery did counts by itself."""
        failure = super().result(entry)
        if entry.row in self._consumed:
            self._consumed.remove(entry.row)
            change = self._done.pop(entry.row, None)
            self._dialogs.done(entry.row, change if failure is None else None)
        return failure

    def _call(self, row: int, delivery: Deliver) -> Call:
        if delivery.at_most_once:
            self._consumed.add(row)
        return Call(row, delivery.counts, self._dialogs.begun(row))

    def _taken(self, entry: BatchEntry, session: int) -> None:
        self._done[entry.row] = self._callers.change(session)


class _NotDiscarded:
    """A source without the messages that their conversations discard."""

    def __init__(self, rows: Rows, host: DialogHost) -> None:
        self._rows, self._host = rows, host

    def take(self, beside: Sequence[BatchEntry] = ()) -> BatchEntry | None:
        """Receive the next message that is handed over."""
        while (entry := self._rows.take(beside)) is not None and self._host.discards(entry):
            pass
        return entry

    def put_back(self, entries: Sequence[BatchEntry]) -> None:
        """Return received messages to their places."""
        self._rows.put_back(entries)


def _leaves_for_good(end: End) -> bool | None:
    """Return whether a message leaves its queue for good; None: it does not leave its place."""
    if isinstance(end, Stay | Halt) or (isinstance(end, Block) and end.whole_queue):
        return None
    return isinstance(end, Dispose) and end.how is not Disposition.MOVE_TO_POISON
