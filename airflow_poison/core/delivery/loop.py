"""The receive loop: carries a policy's decisions out, one transaction after the other.

One implementation serves the replay on a virtual clock and the child process that runs real handlers. What differs stands
behind two small seams: where messages come from (``Source``) and what the decisions do (``Host``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, assert_never

from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Counts, Deliver, Dispose, Disposition, Halt, Park, Return

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow_poison.core.policies.seam import Receiver


class Received(Protocol):
    """An ``Entry`` of the rules whose counts the loop keeps up to date."""

    counts: Counts

    @property
    def lookup_id(self) -> int:
        """The queue's number of the message."""
        ...

    @property
    def size(self) -> int:
        """Bytes of its body."""
        ...

    @property
    def expires_at(self) -> datetime | None:
        """When its time to live ends; None: never."""
        ...


E = TypeVar("E", bound=Received)
E_contra = TypeVar("E_contra", bound=Received, contravariant=True)


class Source(Protocol[E]):
    """The application queue in receive order (priority descending, then lookup id; spec WCF-33)."""

    def take(self) -> E | None:
        """Receive the message at the head; None when the queue is empty."""
        ...

    def put_back(self, entries: Sequence[E]) -> None:
        """Return received messages to their old places."""
        ...


class Host(Protocol[E_contra]):
    """What happens to messages. Every call is made once, in the order in which a broker would do it."""

    def now(self) -> datetime:
        """Return the current time."""
        ...

    def unreadable(self, entry: E_contra) -> Failure | None:
        """Return why the message cannot be handed over at all (spec WCF-29); None when it can."""
        ...

    def deliver(self, entry: E_contra, delivery: Deliver) -> Failure | None:
        """Call the handler; None when it returned."""
        ...

    def committed(self, entries: Sequence[E_contra]) -> None:
        """The transaction that received these messages has committed: they are gone.

        With at-most-once delivery this comes before ``deliver``, whose result then changes nothing (spec WCF-37).
        """
        ...

    def rolled_back(self, entries: Sequence[E_contra], culprit: E_contra | None, failure: Failure) -> None:
        """The transaction is rolled back; each entry carries its new counts. No culprit: a later poison message ended the batch."""
        ...

    def move(self, entry: E_contra, decision: Park | Dispose) -> bool:
        """Try to move the message to a sub-queue; False while somebody else holds it (spec WCF-19)."""
        ...

    def wait(self, entry: E_contra) -> None:
        """Let the time between two tries of a move go by."""
        ...

    def ended(self, entry: E_contra, decision: Park | Dispose | Halt, failure: Failure | None) -> None:
        """The message is parked or disposed of, or has halted the endpoint."""
        ...

    def left_in_place(self, entry: E_contra, decision: Park | Dispose) -> None:
        """All tries of a move failed: the message stays, the next receive decides again (spec WCF-19).

        The receive has ended like any other that meets a poison message: of ``decision.events`` all but the move have happened.
        """
        ...

    def postponed(self, entry: E_contra, failure: Failure) -> None:
        """The handler gave the message back for later; nothing is counted: the entry has the counts that it was stored with."""
        ...


BATCH_MET_POISON = Failure(FailureKind.EXCEPTION, "batch", "a later message of the same batch was poison")


class ReceiveLoop(Generic[E]):
    """Receives until the queue is empty or the endpoint halts."""

    def __init__(self, receiver: Receiver, source: Source[E], host: Host[E]) -> None:
        self._receiver, self._source, self._host = receiver, source, host

    def run(self) -> Halt | None:
        """Receive everything there is; return the decision that halted the endpoint, if one did."""
        while (entry := self._source.take()) is not None:
            if (halt := self._transaction(entry)) is not None:
                return halt
        return None

    def _transaction(self, entry: E) -> Halt | None:
        """Receive up to a batch of messages, deliver them, and commit; the first failure or poison ends it (spec WCF-40)."""
        receiver, host = self._receiver, self._host
        limit, started = receiver.batch_size(), host.now()
        open_batch: list[tuple[E, Counts]] = []
        while True:
            stored = entry.counts
            unreadable = host.unreadable(entry)
            decision = receiver.before(entry, host.now()) if unreadable is None else receiver.give_up(entry, unreadable, host.now())
            if not isinstance(decision, Deliver):
                halt = self._abort_innocents(open_batch)
                return self._end(entry, decision, unreadable) or halt
            entry.counts = decision.counts
            if decision.at_most_once:
                self._commit([(entry, stored)])
                host.deliver(entry, decision)
                return None
            failure = host.deliver(entry, decision)
            open_batch.append((entry, stored))
            if failure is not None:
                return self._roll_back(open_batch, failure)
            if len(open_batch) >= limit or receiver.commit_due(host.now() - started) or (following := self._source.take()) is None:
                self._commit(open_batch)
                return None
            entry = following

    def _commit(self, batch: list[tuple[E, Counts]]) -> None:
        self._host.committed([member for member, _ in batch])
        self._receiver.transaction_committed()

    def _abort_innocents(self, open_batch: list[tuple[E, Counts]]) -> Halt | None:
        """Roll back what a batch had received before it met a poison message (spec WCF-40, WCF-41)."""
        self._receiver.transaction_aborted(became_poison=True)
        return self._return(open_batch, None, BATCH_MET_POISON) if open_batch else None

    def _roll_back(self, open_batch: list[tuple[E, Counts]], failure: Failure) -> Halt | None:
        """Roll the transaction back because the handler of its last message failed."""
        culprit, stored = open_batch[-1]
        if failure.kind is FailureKind.POSTPONED:
            self._postpone(culprit, stored, open_batch[:-1], failure)
            return None
        self._receiver.transaction_aborted(became_poison=False)
        return self._return(open_batch, culprit, failure)

    def _postpone(self, entry: E, stored: Counts, before: list[tuple[E, Counts]], failure: Failure) -> None:
        """Give a message back uncounted. It takes no part in its transaction: what the batch had delivered before it commits."""
        if before:
            self._commit(before)
        entry.counts = stored
        self._host.postponed(entry, failure)

    def _return(self, open_batch: list[tuple[E, Counts]], culprit: E | None, failure: Failure) -> Halt | None:
        host = self._host
        decisions = [(member, self._receiver.after_rollback(member, failure, host.now())) for member, _ in open_batch]
        for member, decision in decisions:
            member.counts = decision.counts
        host.rolled_back([member for member, _ in decisions], culprit, failure)
        halt: Halt | None = None
        back: list[E] = []
        for member, decision in decisions:
            if member is culprit and isinstance(decision, Return) and failure.kind is FailureKind.UNPROCESSABLE:
                halt = self._end(member, self._receiver.give_up(member, failure, host.now()), failure) or halt
            elif isinstance(decision, Return):
                back.append(member)
            else:
                halt = self._end(member, decision, failure) or halt
        self._source.put_back(back)
        return halt

    def _end(self, entry: E, decision: Park | Dispose | Halt, failure: Failure | None) -> Halt | None:
        match decision:
            case Halt():
                entry.counts = decision.counts
                self._host.ended(entry, decision, failure)
                self._source.put_back([entry])
                return decision
            case Park():
                self._move(entry, decision, failure)
            case Dispose(how=Disposition.MOVE_TO_POISON):
                self._move(entry, decision, failure)
            case Dispose():
                self._host.ended(entry, decision, failure)
            case _:
                assert_never(decision)
        return None

    def _move(self, entry: E, decision: Park | Dispose, failure: Failure | None) -> None:
        decided = self._host.now()
        for attempt in range(self._receiver.move_attempts):
            if attempt:
                self._host.wait(entry)
            if self._host.move(entry, decision):
                if isinstance(decision, Park):
                    decision = _due_from_move(decision, decided, self._host.now())
                entry.counts = decision.counts
                self._host.ended(entry, decision, failure)
                return
        entry.counts = self._receiver.after_failed_move(entry)
        self._host.left_in_place(entry, decision)
        self._source.put_back([entry])


def _due_from_move(park: Park, decided: datetime, moved: datetime) -> Park:
    """Measure the delay from the move, in whole seconds, when the message was held for a while (spec WCF-30)."""
    late = moved.replace(microsecond=0) - decided.replace(microsecond=0)
    return replace(park, due_at=park.due_at + late) if late else park
