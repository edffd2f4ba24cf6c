"""Decide: carry out what people have decided about a halted endpoint and its suspect (spec SB-15, SB-24 to SB-26, SB-30, SB-34)."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from airflow_poison.passes import conversations
from airflow_poison.passes.alter import enable, receiving, started
from airflow_poison.passes.browse import look_up
from airflow_poison.passes.dialogs import CONVERSATION, end_conversation, ending, refuse_locked
from airflow_poison.passes.halts import STARTS, SUSPECTS
from airflow_poison.passes.history import ENDED
from airflow_poison.passes.inspect import inspect
from airflow_poison.passes.messages import EVERYWHERE, RUN, ByHand, Chosen, signed
from airflow_poison.passes.move import MOST_SHOWN, moved_events, moved_rows, remove_messages
from airflow_poison.passes.relay import addressed, dead_letter_queue, pull, relay, sent_events, tick, transmit
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.queue_disabling import REMOVAL, Inspection, RecoveryOrder, RecoveryStep
from airflow_poison.rules.settings import choice
from airflow_poison.values.errors import (
    ConversationEndedError,
    ConversationNotFoundError,
    DecisionOutdatedError,
    MessageNotFoundError,
    PoisonError,
    SettingError,
)
from airflow_poison.values.events import EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import SubQueue, place_name
from airflow_poison.values.texts import Plain, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_poison.dialogs.acts import ConversationEndpoint
    from airflow_poison.passes.browse import MessageRow
    from airflow_poison.passes.conversations import ConversationRow
    from airflow_poison.passes.dialogs import ActResult
    from airflow_poison.passes.halts import HaltedEndpoint
    from airflow_poison.rules.queue_disabling import EndConversation
    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConversationEnded(Plain):
    """The end of a conversation, for the application at this side, which gets no message (spec SB-31).

    :param conversation: its handle at this side; ``conversation_id`` is the one of both sides.
    :param error: the error code that the partner gets; None: it ended without an error.
    """

    queue: str
    conversation: str
    conversation_id: str
    group_id: str
    service: str
    far_service: str
    error: int | None = None
    description: str = ""
    cleanup: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How conversations of a queue are ended.

    :param error: the error code that the partner gets, with ``description``; None: the conversation ends without an error.
    :param cleanup: without a message to the partner.
    :param store: where the partner's queue is; None: the next pass of the queue sends it.
    :param told: called when a conversation has ended, after the commit, at least once; what it raises is raised after the partner got its message.
    :param wait: how long to wait while a pass holds the conversation's group.
    :param allowed: looks at the control row that the commit builds upon; what it raises prevents the commit.
    """

    table: QueueTable
    clock: Clock
    store: QueueStore | None
    error: int | None = None
    description: str = ""
    cleanup: bool = False
    told: Callable[[ConversationEnded], object] = lambda _ended: None
    wait: timedelta = timedelta(0)
    allowed: Callable[[Control], object] = lambda _control: None

    def check(self, handle: str) -> None:
        """Raise what ``end`` would raise now; nothing is changed. That a pass receives is no reason where it is waited for."""
        snapshot = self.table.snapshot()
        self.allowed(snapshot.control)
        if not self.wait:
            refuse_locked(self.table, snapshot, f"Conversation {handle!r}")
        act = ending(error=self.error, description=self.description, cleanup=self.cleanup)
        act(conversations.endpoint(self.table, snapshot, handle))

    def end(self, handle: str, key: str) -> tuple[ActResult, ConversationEnded]:
        """End a conversation once a key; a repetition calls ``told`` again. Raises what ``end_conversation`` raises, and what ``told`` does."""
        done = end_conversation(
            self.table,
            handle,
            error=self.error,
            description=self.description,
            cleanup=self.cleanup,
            key=key,
            clock=self.clock,
            wait=self.wait,
            allowed=self.allowed,
        )
        reach("pass.ending.before_telling")
        return self.leave(done), self.tell(handle)

    def end_again(self, handle: str, key: str) -> tuple[ActResult | None, ConversationEnded | None]:
        """End a conversation that has been ended already: under this key, whose work is finished then, or by another call."""
        try:
            return self.end(handle, key)
        except (ConversationNotFoundError, ConversationEndedError):
            return None, None

    def leave(self, done: ActResult) -> ActResult:
        """Let messages leave for the partners; what is held stays, and what a queue that cannot be reached does not take."""
        if self.store is not None:
            with self._whatever_partners_are():
                return left(self.store, self.table, done, self.clock)
        return done

    @contextmanager
    def _whatever_partners_are(self) -> Iterator[None]:
        """Go on where messages cannot be carried: the next pass of either side does, and no queue stays disabled for another one's damage."""
        try:
            yield
        except PoisonError as error:
            log.warning("What queue %r has for its partners was not carried: %s", self.table.name, error)

    def tell(self, handle: str) -> ConversationEnded:
        """Call ``told`` for a conversation that has ended."""
        endpoint = conversations.endpoint(self.table, self.table.snapshot(), handle)
        ended = ConversationEnded(
            queue=self.table.name,
            conversation=handle,
            conversation_id=endpoint.conversation_id,
            group_id=endpoint.group_id,
            service=endpoint.service,
            far_service=endpoint.far_service,
            error=self.error,
            description=self.description,
            cleanup=self.cleanup,
        )
        self.told(ended)
        return ended

    def end_and_enable(self, handle: str, key: str) -> ActResult:
        """End a conversation and enable the queue, in the order that its settings want (spec SB-34)."""
        done: ActResult | None = None
        for step in recovery_steps(self.table.snapshot().control):
            reach("pass.ending.before_step")
            if step is RecoveryStep.ENABLE:
                enable(self.table, self.clock)
            else:
                done, _ = self.end(handle, key)
        assert done is not None, "ending is one of the steps"
        self.carry()
        return done

    def carry(self) -> None:
        """Carry what is on its way from this side, and what partners have held for the queue while it was disabled (spec SB-19)."""
        if self.store is not None and self.table.snapshot().has_conversations:
            with self._whatever_partners_are():
                transmit(self.store, self.table, self.clock)
            pull(self.store, self.table, self.clock)


def left(store: QueueStore, table: QueueTable, done: ActResult, clock: Clock) -> ActResult:
    """Carry what waits at this side to the partners, and say of it in a result."""
    arrived = transmit(store, table, clock)
    return replace(done, arrived=arrived, waiting=sum(file.rows for file in table.snapshot().transmissions))


def recovery_steps(control: Control) -> tuple[RecoveryStep, RecoveryStep]:
    """Return the order that a queue's settings want; the safe one where its system has no say (spec SB-34)."""
    return RecoveryOrder(getattr(policy_from_dict(control.policy), "recovery_order", RecoveryOrder.END_THEN_ENABLE)).steps


def open_endpoint(table: QueueTable, handle: str | None) -> ConversationEndpoint | None:
    """Return a conversation endpoint of the queue that has not ended; None: there is none of this handle."""
    if handle is None:
        return None
    try:
        found = conversations.endpoint(table, table.snapshot(), handle)
    except ConversationNotFoundError:
        return None
    return found if found.is_open else None


def ended_with(table: QueueTable, lookup_id: int) -> str | None:
    """Return the handle of the conversation whose end took a message out of the queue; None: no such end is recorded."""
    for event in table.events(types={EventType.DROPPED}):
        if event.lookup_id == lookup_id and event.details.get("by") == ENDED:
            return event.details.get(CONVERSATION)
    return None


# A halted queue --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecoverResult:
    """What a recovery did.

    :param removed: the messages that are gone: the one that halted the queue, with all of its conversation (spec SB-30).
    :param ended: the conversation that was ended with an error, which its partner gets (spec SB-32); None: the messages belonged to none.
    """

    queue: str
    before: str
    steps: tuple[str, ...]
    removed: tuple[MessageRow, ...]
    ended: ConversationEnded | None = None

    def to_dict(self) -> dict[str, object]:
        """Return plain values; of the messages the first 100, bodies cut at 64 KiB."""
        said = {"queue": self.queue, "before": self.before, "steps": list(self.steps), "removed": len(self.removed)}
        return said | {"messages": plain(self.removed[:MOST_SHOWN]), "ended": plain(self.ended)}


def recover(
    table: QueueTable,
    clock: Clock,
    *,
    lookup_id: int | None = None,
    store: QueueStore | None = None,
    told: Callable[[ConversationEnded], object] = lambda _ended: None,
) -> RecoverResult:
    """Remove the message that halted the queue, then let the queue receive again; in the other order where its settings say so (spec SB-34).

    A message of a dialog goes with its conversation, which ends with error 127, "Unable to process message." (spec SB-26), which the partner gets.
    Running it again after it was killed in the middle finishes it. Inspect first: removal is for good, and for a message that cannot be
    processed. The local application gets no message (spec SB-31).

    :param lookup_id: another message than the one that halted the queue.
    Raises MessageNotFoundError when no message halted the queue and none is named, MessageClaimedError and ConversationLockedError while a pass
    has one of them.
    """
    control = table.snapshot().control
    culprit = control.halted_by
    wanted = lookup_id if lookup_id is not None else culprit
    if wanted is None:
        raise MessageNotFoundError(f"No message halted queue {table.name!r}: name the one to remove, or enable the queue. Nothing was changed.")
    how = Ending(table, clock, store, REMOVAL.error, REMOVAL.description, told=told)
    removed: tuple[MessageRow, ...] = ()
    ended: ConversationEnded | None = None
    steps = recovery_steps(control)
    for step in steps:
        reach("pass.recover.before_step")
        if step is RecoveryStep.ENABLE:
            enable(table, clock)
        else:
            removed, ended = _end(how, wanted, gone_is_done=wanted == culprit)
    how.carry()
    return RecoverResult(table.name, control.state.value, tuple(step.value for step in steps), removed, ended)


def _end(how: Ending, lookup_id: int, *, gone_is_done: bool) -> tuple[tuple[MessageRow, ...], ConversationEnded | None]:
    """Remove a message, with its whole conversation when it belongs to one.

    :param gone_is_done: that it is gone means that an earlier try was killed behind this step.
    """
    table, clock = how.table, how.clock
    found = inspect(table, clock, lookup_id=lookup_id, mode=Inspection.BROWSE).messages
    if not found and (handle := ended_with(table, lookup_id)) is not None:
        return (), how.end_again(handle, _key(handle))[1]
    if not found and gone_is_done:
        return (), None
    conversation = found[0].conversation_id if found else None
    if conversation and open_endpoint(table, conversation) is not None:
        removed = look_up(table, Chosen(conversation_id=conversation))
        return removed, how.end(conversation, _key(conversation))[1]
    if conversation:
        return remove_messages(table, clock, conversation_id=conversation).messages, None
    return remove_messages(table, clock, lookup_ids=[lookup_id]).messages, None


def _key(handle: str) -> str:
    """Return the key under which a recovery ends a conversation: a repetition finds its own work."""
    return f"recover:{handle}"


_MOVED = frozenset({EventType.MOVED_POISON, EventType.REQUEUED, EventType.RETURNED})


class Decision(StrEnum):
    """What can be done about a halted endpoint."""

    REMOVE = "remove"  # put its suspect out of the way, with its conversation, and enable
    END = "end"  # end its conversation with an error, which the partner gets, and enable (spec SB-26)
    RETURN = "return"  # give its suspect fresh attempts in main, and enable
    ENABLE = "enable"  # the suspect stays as it is, and may halt the endpoint again (spec SB-24)
    LEAVE = "leave"  # everything stays as it is

    @property
    def moves(self) -> bool:
        """Whether the suspect does not stay where and as it is."""
        return self in {Decision.REMOVE, Decision.RETURN}


def choices(halt: HaltedEndpoint, message: MessageRow | None, conversation: ConversationRow | None = None) -> tuple[Decision, ...]:
    """Return what can be decided about a halt.

    :param message: its suspect; None: there is none, or it is gone.
    """
    if message is None or halt.lookup_id is None:
        return Decision.ENABLE, Decision.LEAVE
    end = () if conversation is None else (Decision.END,)
    return *end, Decision.REMOVE, Decision.RETURN, Decision.ENABLE, Decision.LEAVE


@dataclass(frozen=True, slots=True)
class DecideResult(Plain):
    """What was done.

    :param messages: how many messages this call has moved: the suspect, and when it is removed the others of its conversation; or has taken out for
        good with their conversation.
    :param to: where they went: ``orders;poison``, another queue, or ``orders``; empty when the decision moves none.
    :param repeated: an earlier try of the same run had done it, or part of it.
    """

    queue: str
    sub_queue: str
    decision: str
    lookup_id: int | None
    messages: int = 0
    to: str = ""
    repeated: bool = False
    ended: ConversationEnded | None = None


def decide(
    table: QueueTable,
    store: QueueStore,
    clock: Clock,
    decision: Decision | str,
    halt: HaltedEndpoint,
    *,
    run: str,
    to_queue: str | None = None,
    end: EndConversation = REMOVAL,
    told: Callable[[ConversationEnded], object] = lambda _ended: None,
) -> DecideResult:
    """Do what was decided about one halt, in the safe order: first the suspect, then the endpoint that it halted is enabled, and no other one.

    As long as the endpoint is halted no pass can receive the suspect, so this order leaves no gap; Service Broker's ``recovery_order`` can turn it
    round (spec SB-34). Running it again with the same ``run`` finishes what was begun, and does nothing twice. No message is lost, unless its
    conversation is ended:

    * ``end`` ends the suspect's conversation with an error, which the partner gets; its messages leave the queue (spec SB-26, SB-30, SB-32).
    * ``remove`` puts the suspect into the poison sub-queue, or into ``to_queue``, with all messages of its conversation (spec SB-30). The suspect
      of the reader of the poison sub-queue goes to ``to_queue``, else to ``<queue>.dead-letter``.
    * ``return`` leaves it in ``main``, or puts it there, with abort count 0 and one more move (spec WCF-14, WCF-28).

    :param halt: what was decided about, as it was seen.
    :param run: names the decision: the same whenever it is tried again.
    :param to_queue: where a removed message is kept; the queue must exist.
    :param end: the code and the text that the partner gets.
    :param told: called when a conversation has ended, at least once; remove the application's state for it there (spec SB-31).
    Raises DecisionOutdatedError when the endpoint is not halted that way any more, MessageNotFoundError for a suspect that is to be returned and
    is gone, MessageClaimedError, ConversationLockedError, QueueNotFoundError, SettingError; then nothing has changed.
    """
    wanted = choice("decision", decision, Decision)
    if halt.lookup_id is None and wanted not in {Decision.ENABLE, Decision.LEAVE}:
        raise SettingError("decision", wanted.value, f"enable or leave: no single message halted {halt.name!r}")
    to = _target(store, wanted, halt, to_queue) if wanted.moves else ""
    result = DecideResult(halt.queue, halt.sub_queue.value, wanted.value, halt.lookup_id, to=to)
    if wanted is Decision.LEAVE:
        return result
    act = _Act(table, clock, halt, run)
    before = act.done()
    control = table.snapshot().control
    if not before:
        check(halt, control)
    ending = Ending(table, clock, store, end.error, end.description, told=told, allowed=act.allowed)
    for step in recovery_steps(control):
        reach("pass.decide.before_step")
        if step is RecoveryStep.ENABLE and not before & STARTS:
            act.enable()
        elif step is RecoveryStep.END_CONVERSATION and wanted is Decision.END:
            result = act.end(ending, result)
        elif step is RecoveryStep.END_CONVERSATION and wanted.moves and not before & _MOVED:
            result = replace(result, messages=act.put_back() if wanted is Decision.RETURN else act.remove(to))
    reach("pass.decide.before_relay")
    relay(store, table, clock)
    ending.carry()
    return replace(result, repeated=result.repeated or bool(before))


def suspect_conversation(table: QueueTable, message: MessageRow | None) -> ConversationRow | None:
    """Return the conversation of a suspect, where it is one of the queue's services and has not ended here."""
    endpoint = None if message is None else open_endpoint(table, message.conversation_id)
    return None if endpoint is None else conversations.conversations(table, handle=endpoint.handle)[0]


def suspect(table: QueueTable, clock: Clock, halt: HaltedEndpoint) -> tuple[MessageRow | None, int]:
    """Return the suspect, and how many other messages of its conversation are in the queue. Nothing is changed (spec SB-28, SB-33)."""
    if halt.lookup_id is None:
        return None, 0
    seen = inspect(table, clock, lookup_id=halt.lookup_id, mode=Inspection.BROWSE).messages
    if not seen or not seen[0].conversation_id:
        return (seen[0] if seen else None), 0
    together = inspect(table, clock, conversation_id=seen[0].conversation_id, mode=Inspection.BROWSE)
    return seen[0], len(together.messages) + together.more - 1


def check(halt: HaltedEndpoint, control: Control) -> None:
    """Raise DecisionOutdatedError unless the endpoint is halted as it was seen."""
    if halt.holds(control):
        return
    state, reason = control.endpoint(halt.sub_queue)
    seen = halt.state.value + ("" if halt.lookup_id is None else f" by message {halt.lookup_id}")
    now = state.value + (f" ({reason})" if reason else "")
    raise DecisionOutdatedError(
        f"Queue {halt.name!r} was {seen} when people were asked, and is {now} now: the decision does not fit any more. "
        "Nothing has changed. If the queue is still halted, ask again."
    )


def _target(store: QueueStore, decision: Decision, halt: HaltedEndpoint, to_queue: str | None) -> str:
    """Return where the suspect goes. A queue that is named must exist: a typing error must not make one."""
    if decision is Decision.RETURN:
        return halt.queue
    if to_queue is None:
        return place_name(halt.queue, SubQueue.POISON) if halt.sub_queue is SubQueue.MAIN else dead_letter_queue(halt.queue)
    if to_queue == halt.queue:
        raise SettingError("to_queue", to_queue, "another queue than the halted one")
    store.open(to_queue)
    return to_queue


@dataclass(slots=True)
class _Act:
    """The steps of a decision; each is one commit, whose events say which run made it."""

    table: QueueTable
    clock: Clock
    halt: HaltedEndpoint
    run: str
    enabled: bool = False

    def done(self) -> frozenset[EventType]:
        """Return what an earlier try of this run has done. Reads what was recorded after the halt was seen."""
        events = self.table.events(self.halt.version, types=STARTS | _MOVED)
        found = frozenset(event.type for event in events if event.details.get(RUN) == self.run)
        self.enabled = bool(found & STARTS)
        return found

    def enable(self) -> None:
        """Enable the endpoint, and not the other one of the queue."""
        tick(self.table, self.clock)  # before what partners send (spec section 11.1)
        self.table.alter(self._started, lambda old, new: [signed(event, self.run) for event in started(old, new, self.clock)], self.clock.now())
        self.enabled = True

    def _started(self, control: Control) -> Control:
        check(self.halt, control)
        place = self.halt.sub_queue
        row = control.with_counters({SUSPECTS[place]: None})
        left = row.endpoint_counters
        if place is SubQueue.MAIN and left:
            row = row.with_endpoint_counters(policy_from_dict(row.policy).counters_when_enabled(left, starts=True))
        return receiving(row, place)

    def end(self, ending: Ending, result: DecideResult) -> DecideResult:
        """End the suspect's conversation; the result lacks it when the suspect had been taken out before."""
        seen, _ = suspect(self.table, self.clock, self.halt)
        key = f"decide:{self.run}"
        if seen is None:
            handle = None if self.halt.lookup_id is None else ended_with(self.table, self.halt.lookup_id)
            done, ended = (None, None) if handle is None else ending.end_again(handle, key)
        elif seen.conversation_id is None or open_endpoint(self.table, seen.conversation_id) is None:
            raise SettingError(
                "decision", Decision.END.value, f"remove, return, enable or leave: message {seen.lookup_id} is of no open conversation"
            )
        else:
            done, ended = ending.end(seen.conversation_id, key)
        return result if done is None else replace(result, messages=done.removed, repeated=done.repeated, ended=ended)

    def allowed(self, control: Control) -> None:
        """Raise DecisionOutdatedError for what may not be changed any more: before the endpoint is enabled, it is halted as it was seen."""
        if not self.enabled:
            check(self.halt, control)

    def put_back(self) -> int:
        """Give the suspect fresh attempts in ``main``."""
        return self._commit(
            ByHand(
                self._suspect,
                partial(moved_rows, place=SubQueue.MAIN, counted=True),
                partial(moved_events, place=SubQueue.MAIN, now=self.clock.now(), counted=True),
            )
        )

    def remove(self, target: str) -> int:
        """Put the suspect out of the way, with its conversation; 0 when it was taken out before."""
        seen, _ = suspect(self.table, self.clock, self.halt)
        chosen = Chosen(conversation_id=seen.conversation_id) if seen is not None and seen.conversation_id else self._suspect
        now = self.clock.now()
        if target == place_name(self.halt.queue, SubQueue.POISON):
            become, told = partial(moved_rows, place=SubQueue.POISON), partial(moved_events, place=SubQueue.POISON, now=now)
            change = ByHand(chosen, become, told, EVERYWHERE - {SubQueue.POISON})
        else:
            change = ByHand(
                chosen,
                lambda rows: addressed(rows, [target] * rows.num_rows),
                lambda rows: sent_events(rows, [target] * rows.num_rows, now),
            )
        try:
            return self._commit(change)
        except MessageNotFoundError:
            return 0

    @property
    def _suspect(self) -> Chosen:
        assert self.halt.lookup_id is not None
        return Chosen.ids([self.halt.lookup_id])

    def _commit(self, change: ByHand) -> int:
        """Make the change; before the endpoint is enabled, only while it is halted as it was seen."""
        allowed = change.allowed if self.enabled else self.allowed
        return replace(change, run=self.run, allowed=allowed).commit(self.table, self.clock.now()).num_rows
