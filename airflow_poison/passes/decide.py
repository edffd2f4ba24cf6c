"""Decide: carry out what people have decided about a halted endpoint and its suspect (spec SB-15, SB-24 to SB-26, SB-30, SB-34)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from airflow_poison.passes.alter import receiving, started
from airflow_poison.passes.conversations import ConversationRow, conversations
from airflow_poison.passes.halts import STARTS, SUSPECTS, HaltedEndpoint
from airflow_poison.passes.inspect import inspect
from airflow_poison.passes.messages import EVERYWHERE, RUN, ByHand, Chosen, signed
from airflow_poison.passes.move import moved_events, moved_rows
from airflow_poison.passes.recovery import ConversationEnded, Ending, ended_with, open_endpoint, recovery_steps
from airflow_poison.passes.relay import addressed, dead_letter_queue, relay, sent_events, tick
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.queue_disabling import REMOVAL, EndConversation, Inspection, RecoveryStep
from airflow_poison.rules.settings import choice
from airflow_poison.values.errors import DecisionOutdatedError, MessageNotFoundError, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import SubQueue, place_name
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.passes.browse import MessageRow
    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

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
    on_ended: Callable[[ConversationEnded], object] = lambda _ended: None,
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
    :param on_ended: called when a conversation has ended, at least once; remove the application's state for it there (spec SB-31).
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
    ending = Ending(table, clock, store, end.error, end.description, on_ended=on_ended, allowed=act.allowed)
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
    return None if endpoint is None else conversations(table, handle=endpoint.handle)[0]


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
        self.table.alter(self._started, lambda old, new: [signed(event, self.run) for event in started(old, new, self.clock)])
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
            become, events = partial(moved_rows, place=SubQueue.POISON), partial(moved_events, place=SubQueue.POISON, now=now)
            change = ByHand(chosen, become, events, EVERYWHERE - {SubQueue.POISON})
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
        return replace(change, run=self.run, allowed=allowed).commit(self.table).num_rows
