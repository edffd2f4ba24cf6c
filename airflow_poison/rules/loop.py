"""The receive loop: carries a policy's decisions out, one transaction after the other, or one round of server sessions after the other.

One implementation serves the replay on a virtual clock, the child process that runs real handlers, and the task that has several of them.
What differs stands behind two small interfaces: where messages come from (``Source``) and what the decisions do (``Host``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, assert_never

from airflow_poison.rules.decisions import Block, Counts, Deliver, Dispose, Disposition, Halt, Park, Return
from airflow_poison.rules.policy import Entry, Policy, Receiver
from airflow_poison.values.failures import Failure, FailureKind

if TYPE_CHECKING:
    Ended = Park | Dispose | Block | Halt


class Received(Entry, Protocol):
    """An entry of the rules whose counts the loop keeps up to date."""

    counts: Counts


E = TypeVar("E", bound=Received)
E_contra = TypeVar("E_contra", bound=Received, contravariant=True)


class Source(Protocol[E]):
    """The application queue in receive order (priority descending, then lookup id; spec WCF-33)."""

    def take(self, beside: Sequence[E] = ()) -> E | None:
        """Receive the next message; None when there is none, or the queue is blocked.

        :param beside: the messages that other server sessions have now: none of their groups, where the system locks groups.
        """
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

    def begin(self, entry: E_contra, delivery: Deliver) -> None:
        """Hand a message to a free server session; only asked for with several of them."""
        raise AssertionError(entry, delivery)

    def result(self, entry: E_contra) -> Failure | None:
        """Wait for the end of a delivery that was begun; None when the handler returned."""
        raise AssertionError(entry)

    def committed(self, entries: Sequence[E_contra]) -> None:
        """The transaction that received these messages has committed: they are gone.

        With at-most-once delivery this comes before ``deliver``, whose result then changes nothing (spec WCF-37).
        """
        ...

    def rolled_back(self, entries: Sequence[E_contra], culprit: E_contra | None, failure: Failure) -> None:
        """The transaction is rolled back; each entry carries its new counts. No culprit: a later poison message ended the batch."""
        ...

    def move(self, entry: E_contra, decision: Park | Dispose) -> bool:
        """Try to move the message to a sub-queue; False while another reader holds it (spec WCF-19). Where messages are claimed, none does."""
        del entry, decision
        return True

    def wait(self, entry: E_contra) -> None:
        """Let the time between two tries of a move go by."""
        del entry

    def ended(self, entry: E_contra, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """The message is parked or disposed of, is blocked, or has halted the endpoint."""
        ...

    def withholds(self, entry: E_contra) -> bool:
        """Whether the last failure of a message, for which the endpoint halts or its queue is blocked now, is an outage's.

        Then neither happens: the message is put back, and nothing more is received.
        """
        del entry
        return False

    def halted(self, decision: Halt) -> None:
        """The endpoint has ended receiving after a commit: no message is the cause (spec SB-13)."""
        del decision

    def left_in_place(self, entry: E_contra, decision: Park | Dispose) -> None:
        """All tries of a move failed: the message stays, the next receive decides again (spec WCF-19).

        The receive has ended like any other that meets a poison message: of ``decision.events`` all but the move have happened.
        """
        del entry, decision

    def postponed(self, entry: E_contra, failure: Failure) -> None:
        """The handler gave the message back for later; nothing is counted: the entry has the counts that it was stored with."""
        ...

    def back_at_savepoint(self, entry: E_contra) -> None:
        """The handler rolled back to its savepoint: the message is back at its place, and the transaction commits what was done since."""
        del entry


BATCH_MET_POISON = Failure(FailureKind.EXCEPTION, "batch", "a later message of the same batch was poison")


@dataclass(frozen=True, slots=True)
class Sessions:
    """How many messages are processed at the same time.

    :param number: from 2 on the loop goes in rounds; 0: no reader (spec SB-23).
    :param early: how many sessions get their next message before all results of a round are in (spec WMQ-20).
    :param batches: whether a transaction may receive several messages, where the policy batches.
    """

    number: int = 1
    early: int = 0
    batches: bool = True

    @classmethod
    def of(cls, policy: Policy) -> Sessions:
        """Return the rounds of an endpoint that is alone on its queue."""
        return cls(policy.server_sessions, policy.early_hand_out)


@dataclass(slots=True, eq=False)
class _InFlight(Generic[E]):
    entry: E
    stored: Counts
    at_most_once: bool


class ReceiveLoop(Generic[E]):
    """Receives until the queue is empty or the endpoint halts.

    :ivar halt: the decision that ended receiving; None while the endpoint is open.
    :ivar withheld: a halt or a block was not carried out, and nothing more is received: an outage is behind it.
    """

    def __init__(self, receiver: Receiver, source: Source[E], host: Host[E], sessions: Sessions = Sessions()) -> None:
        self._receiver, self._source, self._host, self._sessions = receiver, source, host, sessions
        self._in_flight: list[_InFlight[E]] = []
        self.halt: Halt | None = None
        self.withheld = False

    def run(self) -> Halt | None:
        """Receive everything there is; return the decision that halted the endpoint, if one did."""
        while self.step():
            pass
        return self.halt

    def step(self) -> bool:
        """Carry one transaction out, or one round of them; False when there was nothing to receive, or the endpoint has halted."""
        if self._sessions.number > 1:
            return self._round()
        if not self._sessions.number or self.halt is not None or self.withheld or (entry := self._source.take()) is None:
            return False
        self._transaction(entry)
        return True

    # One session -------------------------------------------------------------------------------------------------

    def _transaction(self, entry: E) -> None:
        """Receive up to a batch of messages, deliver them, and commit; the first failure or poison ends it (spec WCF-40)."""
        receiver, host = self._receiver, self._host
        limit, started = receiver.batch_size() if self._sessions.batches else 1, host.now()
        open_batch: list[tuple[E, Counts]] = []
        while True:
            stored = entry.counts
            decision, unreadable = self._detect(entry)
            if not isinstance(decision, Deliver):
                self._abort_innocents(open_batch)
                self.end(entry, decision, unreadable)
                return
            entry.counts = decision.counts
            if decision.at_most_once:
                self._commit([(entry, stored)])
                host.deliver(entry, decision)
                return
            failure = host.deliver(entry, decision)
            open_batch.append((entry, stored))
            if failure is not None:
                self._roll_back(open_batch, failure)
                return
            if len(open_batch) >= limit or receiver.commit_due(host.now() - started) or (following := self._source.take()) is None:
                self._commit(open_batch)
                return
            entry = following

    # Several sessions --------------------------------------------------------------------------------------------

    def _round(self) -> bool:
        """Give every free session a message, then take the results in the order of the sessions (spec section 11.1, WebSphere MQ)."""
        received = self._hand_out(self._sessions.number)
        round_ = len(self._in_flight)
        for session in range(round_):
            self._take_result()
            if session < self._sessions.early:
                self._hand_out(len(self._in_flight) + 1)
        return received or bool(round_)

    def finish(self) -> None:
        """Take the results of messages in flight and receive nothing more; called again, goes on behind a result that cannot be had."""
        while self._in_flight:
            self._take_result()

    def _take_result(self) -> None:
        delivery = self._in_flight.pop(0)
        failure = self._host.result(delivery.entry)
        batch = [(delivery.entry, delivery.stored)]
        if delivery.at_most_once:
            return
        self._commit(batch) if failure is None else self._roll_back(batch, failure)

    def _hand_out(self, most: int) -> bool:
        """Receive until so many messages are in flight; return whether anything was received."""
        received = False
        while self.halt is None and not self.withheld and len(self._in_flight) < most:
            if (entry := self._source.take([delivery.entry for delivery in self._in_flight])) is None:
                break
            received, stored = True, entry.counts
            decision, unreadable = self._detect(entry)
            if isinstance(decision, Deliver):
                entry.counts = decision.counts
                if decision.at_most_once:
                    self._commit([(entry, stored)])
                self._host.begin(entry, decision)
                self._in_flight.append(_InFlight(entry, stored, decision.at_most_once))
            else:
                self._receiver.transaction_aborted(became_poison=True)
                self.end(entry, decision, unreadable)
        return received

    # Decisions ---------------------------------------------------------------------------------------------------

    def _detect(self, entry: E) -> tuple[Deliver | Ended, Failure | None]:
        """Ask what this receive does; a message that cannot be handed over at all is given up at once (spec WCF-29)."""
        unreadable = self._host.unreadable(entry)
        if unreadable is not None:
            return self._receiver.give_up(entry, unreadable, self._host.now()), unreadable
        return self._receiver.before(entry, self._host.now()), None

    def _commit(self, batch: list[tuple[E, Counts]]) -> None:
        members = [member for member, _ in batch]
        self._host.committed(members)
        self.noted(members)

    def noted(self, members: Sequence[E]) -> None:
        """Notify the endpoint of a commit, which may end receiving."""
        halt = self._receiver.transaction_committed(members)
        if halt is not None:
            self.halt = halt
            self._host.halted(halt)

    def _abort_innocents(self, open_batch: list[tuple[E, Counts]]) -> None:
        """Roll back what a batch had received before it met a poison message (spec WCF-40, WCF-41)."""
        self._receiver.transaction_aborted(became_poison=True)
        if open_batch:
            self._return(open_batch, None, BATCH_MET_POISON)

    def _roll_back(self, open_batch: list[tuple[E, Counts]], failure: Failure) -> None:
        """Roll the transaction back because the handler of its last message failed."""
        culprit, stored = open_batch[-1]
        if failure.kind is FailureKind.POSTPONED:
            self._postpone(culprit, stored, open_batch[:-1], failure)
        elif failure.kind is FailureKind.SAVEPOINT:
            self._back_to_savepoint(culprit, stored, open_batch[:-1])
        else:
            self._receiver.transaction_aborted(became_poison=False)
            self._return(open_batch, culprit, failure)

    def _postpone(self, entry: E, stored: Counts, before: list[tuple[E, Counts]], failure: Failure) -> None:
        """Give a message back uncounted. It takes no part in its transaction: what the batch had delivered before it commits."""
        if before:
            self._commit(before)
        entry.counts = stored
        self._host.postponed(entry, failure)

    def _back_to_savepoint(self, entry: E, stored: Counts, before: list[tuple[E, Counts]]) -> None:
        """The message is back at its place, the transaction commits (spec SB-8, SB-58)."""
        entry.counts = stored
        self._host.back_at_savepoint(entry)
        self._source.put_back([entry])
        if before:
            self._host.committed([member for member, _ in before])
        self.noted([*(member for member, _ in before), entry])

    def _return(self, open_batch: list[tuple[E, Counts]], culprit: E | None, failure: Failure) -> None:
        host = self._host
        decisions = [(member, self._receiver.after_rollback(member, failure, host.now())) for member, _ in open_batch]
        for member, decision in decisions:
            member.counts = decision.counts
        host.rolled_back([member for member, _ in decisions], culprit, failure)
        back: list[E] = []
        for member, decision in decisions:
            if member is culprit and isinstance(decision, Return) and failure.kind is FailureKind.UNPROCESSABLE:
                self.end(member, self._receiver.give_up(member, failure, host.now()), failure)
            elif isinstance(decision, Return):
                back.append(member)
            else:
                self.end(member, decision, failure)
        self._source.put_back(back)

    def end(self, entry: E, decision: Ended, failure: Failure | None) -> None:
        """Carry out the disposition of a message that is not delivered again."""
        if (isinstance(decision, Halt) or (isinstance(decision, Block) and decision.whole_queue)) and self._host.withholds(entry):
            self.withheld = True
            self._source.put_back([entry])
            return
        match decision:
            case Halt():
                self.halt = decision
                entry.counts = decision.counts
                self._host.ended(entry, decision, failure)
                self._source.put_back([entry])
            case Block():
                entry.counts = decision.counts
                self._host.ended(entry, decision, failure)
                if decision.whole_queue:
                    self._source.put_back([entry])
            case Park():
                self._move(entry, decision, failure)
            case Dispose(how=Disposition.MOVE_TO_POISON):
                self._move(entry, decision, failure)
            case Dispose():
                self._host.ended(entry, decision, failure)
            case _:
                assert_never(decision)

    def _move(self, entry: E, decision: Park | Dispose, failure: Failure | None) -> None:
        decided = self._host.now()
        for attempt in range(self._receiver.move_attempts):
            if attempt:
                self._host.wait(entry)
            if self._host.move(entry, decision):
                if isinstance(decision, Park):
                    decision = self._due_from_move(decision, decided, self._host.now())
                entry.counts = decision.counts
                self._host.ended(entry, decision, failure)
                return
        entry.counts = self._receiver.after_failed_move(entry)
        self._host.left_in_place(entry, decision)
        self._source.put_back([entry])

    def _due_from_move(self, park: Park, decided: datetime, moved: datetime) -> Park:
        """Measure the delay from the move, in whole seconds, when the message was held for a while (spec WCF-30)."""
        late = moved.replace(microsecond=0) != decided.replace(microsecond=0)
        return replace(park, due_at=self._receiver.parked_until(moved)) if late else park
