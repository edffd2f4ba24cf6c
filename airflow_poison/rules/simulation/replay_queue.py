"""The queue of a replay: sub-queues in memory, the return from retry, and what people do at given times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, assert_never

from airflow_poison.rules.decisions import (
    Block,
    Counts,
    Dispose,
    Disposition,
    Halt,
    Halted,
    Park,
    Returning,
    ReturnOrder,
    WaitingInRetry,
    moved,
    returning,
)
from airflow_poison.rules.policy import Opening, Policy, Receiver, Restart
from airflow_poison.rules.simulation.scripted_host import Action, Outcome, Outcomes, PlayedEvents, Script, Scripted, Verb, as_span
from airflow_poison.values.errors import InputError
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from airflow_poison.values.clock import VirtualClock

NOT_ARRIVED = "not_arrived"
IN_DELIVERY = "in_delivery"
REMOVED = "removed"
DROPPED = "dropped"
DEAD_LETTER = "dead_letter"
FOREVER = datetime.max.replace(tzinfo=UTC)
_CLOSING = {Verb.CLOSE, Verb.RESTART, Verb.RESTART_SERVER, Verb.RESTART_BROKER, Verb.CRASH}


@dataclass(slots=True, eq=False)
class Held:
    """A scripted message where it is now: an entry of the rules and of the receive loop."""

    message: Scripted
    lookup_id: int
    arrives_at: datetime
    expires_at: datetime | None
    place: str = NOT_ARRIVED
    counts: Counts = field(init=False)
    due_at: datetime | None = None
    parked_at: datetime | None = None
    waited: timedelta = timedelta(0)
    receives: int = 0
    deliveries: int = 0
    blocked: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    locked: int = field(init=False)
    outcomes: Iterator[Outcome] = field(init=False)
    items: dict[str, Iterator[Outcome]] = field(init=False)

    @classmethod
    def of(cls, number: int, message: Scripted, started: datetime) -> Held:
        """Return a message that has not arrived."""
        at = started + as_span(message.at)
        return cls(message, number, at, at + as_span(message.ttl) if message.ttl is not None else None)

    def __post_init__(self) -> None:
        self.counts = Counts(self.message.abort_count, self.message.move_count)
        self.locked = self.message.locked
        self.outcomes = iter(Outcomes(self.message.outcomes))
        self.items = {name: iter(Outcomes(outcomes)) for name, outcomes in self.message.items.items()}

    @property
    def name(self) -> str:
        """Its name in the script."""
        return self.message.name

    @property
    def size(self) -> int:
        """Bytes of its body."""
        return self.message.size

    @property
    def group(self) -> str:
        """Its conversation group; without one it is a group of its own."""
        return self.message.group or f"#{self.lookup_id}"

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties."""
        return self.message.properties

    @property
    def parked(self) -> bool:
        """Whether it waits in a retry sub-queue."""
        return self.parked_at is not None

    @property
    def place_in_queue(self) -> tuple[int, int]:
        """Its place in receive order (spec WCF-33)."""
        return -self.message.priority, self.lookup_id


def _destination(decision: Dispose) -> str:
    if decision.how is Disposition.MOVE_TO_POISON:
        return SubQueue.POISON
    if decision.how is Disposition.SEND:
        return decision.destination
    return DEAD_LETTER if decision.to_dead_letter else DROPPED


class TimeIsUp(Exception):  # noqa: N818  (no error)
    """The replay's clock has come to where it is to stop, in the middle of a delivery."""


class ReplayQueue:
    """The ``Source`` of a replay, and its time: whatever is due by now has happened before a receive.

    :param policy: the settings; ``alter`` changes them for the next endpoint.
    :param opening: what the first endpoint finds.
    :param script: messages, and what people do, in order of time.
    :param until: where the clock stops; None: nowhere.
    """

    def __init__(
        self, policy: Policy, opening: Opening, clock: VirtualClock, script: Script, *, most_receives: int, until: datetime | None = None
    ) -> None:
        started = clock.now()
        self._until = until or FOREVER
        self.policy = self.opened = policy
        self.clock, self.ledger = clock, PlayedEvents(clock)
        self.queue, self._access, self._counters = opening.queue, opening.access, opening.counters
        self.halted: Halted | None = policy.starts_halted
        self.receiver: Receiver | None = policy.open(opening) if self.halted is None else None
        arriving = sorted(script.messages, key=lambda message: as_span(message.at))
        self.messages = [Held.of(number, message, started) for number, message in enumerate(arriving, 1)]
        self._todo = sorted(((started + as_span(action.at), action) for action in script.actions), key=lambda todo: todo[0])
        self._waiting: list[Action] = []
        self._receives_left = most_receives
        self._served: Receiver | None = None
        self._peeked: int | None = None
        self._taken: tuple[int, int] | None = None
        self._blocked_until: datetime | None = None
        self._blocked_by: Held | None = None

    @property
    def exhausted(self) -> bool:
        """Whether the replay may receive no more."""
        return self._receives_left == 0

    @property
    def counters(self) -> Mapping[str, int]:
        """What the endpoint leaves behind."""
        return self._counters if self.receiver is None else self.receiver.counters()

    def serve(self) -> Receiver | None:
        """Return the open endpoint; ``take`` gives it messages until it is closed or opened anew. None when it is closed."""
        self._served = self.receiver
        return self.receiver

    def take(self, beside: Sequence[Held] = ()) -> Held | None:
        """Receive the head: highest priority, then lowest lookup id (spec WCF-33); or what follows in the sweep (spec WMQ-29)."""
        self.catch_up()
        if self.receiver is None or self.receiver is not self._served or self.exhausted or self._is_blocked():
            return None
        locked = {held.group for held in beside} if self.opened.locks_groups else set()
        waiting = sorted((held for held in self._in(self.policy.reads) if held.group not in locked), key=lambda held: held.place_in_queue)
        if not waiting:
            self._taken = None  # the end of the queue: a sweep begins again at the top
            return None
        self._receives_left -= 1
        head = waiting[0]
        if self.opened.sweeps and self._taken is not None:
            head = next((held for held in waiting if held.place_in_queue > self._taken), head)
        self._taken = head.place_in_queue
        head.place = IN_DELIVERY
        head.receives += 1
        return head

    def put_back(self, entries: Sequence[Held]) -> None:
        """Return received messages to their places."""
        for held in entries:
            held.place = self.policy.reads

    def halt(self, decision: Halt) -> None:
        """End receiving because a decision says so."""
        self._close()
        self.halted = decision.how

    def carry_out(self, held: Held, decision: Park | Dispose | Block | Halt) -> str:
        """Put a message where a decision wants it, and return where that is; a block may be of the whole queue (spec DMP-14)."""
        match decision:
            case Park():
                held.place, held.due_at, held.parked_at = decision.place, decision.due_at, self.clock.now()
            case Dispose():
                held.place, held.headers = _destination(decision), decision.headers
                self.ledger.reports += decision.reports
            case Block(whole_queue=False):
                held.place, held.due_at, held.blocked = SubQueue.POSTPONED, decision.until or FOREVER, True
            case Block():
                self._blocked_until, self._blocked_by = decision.until or FOREVER, held
                return self.opened.reads
            case Halt():
                return self.opened.reads
            case _:
                assert_never(decision)
        return held.place

    def postpone(self, held: Held, delay: timedelta) -> None:
        """Keep a message that its handler gave back."""
        held.place, held.due_at = SubQueue.POSTPONED, self.clock.now() + delay

    def catch_up(self) -> None:
        """Let everything happen that is due by now: arrivals, actions, returns."""
        now = self.clock.now()
        for held in self._in(NOT_ARRIVED):
            if held.arrives_at <= now:
                held.place = self.policy.reads
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self._act(action)
        while self._todo and self._todo[0][0] <= now:
            self._act(self._todo.pop(0)[1])
        if self.receiver is not None:
            self._return_due(now)

    def spend(self, span: timedelta, *, interruptible: bool = True) -> bool:
        """Let time go by, with what people do in it; False when the endpoint is to be closed before the span is over.

        It is closed after the deliveries under way have been rolled back and counted. Raises TimeIsUp when the clock stops before.
        """
        end = self.clock.now() + span
        while interruptible and self._todo and self._todo[0][0] < end and self._todo[0][0] <= self._until:
            due, action = self._todo[0]
            self.clock.at = max(due, self.clock.at)
            if action.verb in _CLOSING:
                return False
            del self._todo[0]
            self._act(action, delivering=True)
        if end > self._until:
            raise TimeIsUp
        self.clock.at = end
        return True

    def next_instant(self) -> datetime | None:
        """When something happens next: now while there is something to receive; None when nothing will."""
        times = [held.arrives_at for held in self._in(NOT_ARRIVED)]
        times += [at for at, _ in self._todo[:1]]
        if self._waiting:
            times.append(self.clock.now())
        if self.receiver is not None:
            if self._in(self.policy.reads) and self.opened.server_sessions:
                if not self._is_blocked():
                    return self.clock.now()
                times += [self._blocked_until] if self._blocked_until not in {None, FOREVER} else []
            look = self._look(self.clock.now()).next_at
            times += [held.due_at for held in self._in(SubQueue.POSTPONED) if held.due_at not in {None, FOREVER}]
            times += [look] if look else []
        return max(min(times), self.clock.now()) if times else None

    def _in(self, place: str) -> list[Held]:
        return [held for held in self.messages if held.place == place]

    def _is_blocked(self) -> bool:
        return self._blocked_until is not None and self.clock.now() < self._blocked_until

    def _look(self, now: datetime) -> Returning:
        waiting = (WaitingInRetry(held.lookup_id, held.due_at, held.message.priority) for held in self.messages if held.parked and held.due_at)
        return returning(waiting, now, ReturnOrder(self.policy.return_order), self._peeked)

    def _return_due(self, now: datetime) -> None:
        look = self._look(now)
        self._peeked = look.peeked
        by_id = {held.lookup_id: held for held in self.messages}
        for lookup_id in look.lookup_ids:
            held = by_id[lookup_id]
            self._leave_retry(held)
            held.place, held.counts = SubQueue.MAIN, moved(held.counts)
            self.ledger.write(EventType.RETURNED, held)
        for held in self._in(SubQueue.POSTPONED):
            if held.due_at is not None and held.due_at <= now:
                self._leave_postponed(held)

    def _leave_retry(self, held: Held) -> None:
        if held.parked_at is not None:
            held.waited += self.clock.now() - held.parked_at
        held.parked_at = held.due_at = None

    def _leave_postponed(self, held: Held) -> None:
        held.place, held.due_at, held.blocked = self.policy.reads, None, False

    # What people do ------------------------------------------------------------------------------------------------

    def _act(self, action: Action, *, delivering: bool = False) -> None:
        """Do what people do now. What has to wait for deliveries under way is done when they have ended, also where a close ends them early."""
        verb = Verb(action.verb)
        match verb:
            case Verb.CLOSE:
                self._close()
            case Verb.ENABLE | Verb.DISABLE if delivering:
                self._waiting.append(action)
            case Verb.OPEN | Verb.ENABLE:
                self._start(reset=verb is Verb.ENABLE)
            case Verb.DISABLE:
                self._close()
                self.halted = Halted.DISABLED
            case Verb.RESTART | Verb.RESTART_SERVER | Verb.RESTART_BROKER | Verb.CRASH:
                self._restart(verb)
            case Verb.ALTER:
                self._alter(action.settings)
            case Verb.PUT_BACK | Verb.REMOVE:
                held = next(held for held in self.messages if held.name == action.message)
                if held.place == IN_DELIVERY:
                    self._waiting.append(action)
                else:
                    self._by_hand(action, held)
            case _:
                assert_never(verb)

    def _close(self) -> None:
        self._counters, self.receiver, self._peeked = self.counters, None, None

    def _alter(self, settings: Mapping[str, object]) -> None:
        """Change settings. Counters that wait for the next endpoint are what one of these settings makes of them (spec SB-7)."""
        self.policy = self.policy.altered(settings)
        if self.receiver is None:
            self._counters = self.policy.counters_when_altered(self._counters)

    def _start(self, *, reset: bool) -> None:
        """Open a closed or halted endpoint; ``reset``: start its counters anew, even when it is open (spec section 11.1)."""
        if reset or self.halted is not None:
            self._close()
            self._counters = self.policy.counters_when_enabled(self._counters, starts=self.halted is not None)
        if self.receiver is None:
            self._open()

    def _open(self) -> None:
        self.opened, self._peeked, self._taken = self.policy, None, None
        self.receiver = self.policy.open(Opening(self.queue, self._counters, self._access))
        if self.halted is not None:
            self.ledger.write(EventType.QUEUE_ENABLED if self.halted is Halted.DISABLED else EventType.STARTED)
            self.halted = None

    def _restart(self, verb: Verb) -> None:
        """Start something anew. A queue that is disabled stays so; a broker opens no endpoint that was not open."""
        was_open = self.receiver is not None
        if verb is Verb.CRASH:
            self.receiver, self._peeked = None, None
        else:
            self._close()
        restart = {Verb.RESTART: Restart.ENDPOINT, Verb.RESTART_BROKER: Restart.BROKER}.get(verb, Restart.SERVER)
        self._counters = self.policy.counters_after(self._counters, restart)
        if restart is Restart.BROKER:
            self._broker_was_down()
        if self.halted is not Halted.DISABLED and (was_open or restart is not Restart.BROKER):
            self._open()

    def _broker_was_down(self) -> None:
        self._blocked_until = self._blocked_by = None
        for held in self.messages:
            if held.blocked:
                self._leave_postponed(held)
            held.counts = self.policy.counts_after(held.counts, Restart.BROKER)

    def _by_hand(self, action: Action, held: Held) -> None:
        kept = held.parked or held.place in set(SubQueue)
        if not kept or (action.verb == Verb.PUT_BACK and held.place != SubQueue.POISON):
            raise InputError(f"{action.verb} {held.name!r} at {as_span(action.at)}: the message is {held.place}.")
        self._leave_retry(held)
        if action.verb == Verb.REMOVE:
            held.place = REMOVED
            if held is self._blocked_by:
                self._blocked_until = self._blocked_by = None
            return
        held.place, held.counts = SubQueue.MAIN, moved(held.counts)
        self.ledger.write(EventType.RETURNED, held, origin=SubQueue.POISON)
