"""Recovery: end the conversation of the message that halted a queue, and enable the queue (spec SB-15, SB-24, SB-26, SB-30, SB-34).

A conversation is ended the same way where no queue is halted: its partner gets a message, and the application here is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_poison.passes import conversations
from airflow_poison.passes.alter import enable
from airflow_poison.passes.browse import MessageRow, look_up
from airflow_poison.passes.dialogs import CONVERSATION, ActResult, end_conversation, ending, refuse_locked
from airflow_poison.passes.history import ENDED
from airflow_poison.passes.inspect import inspect
from airflow_poison.passes.messages import Chosen
from airflow_poison.passes.move import MOST_SHOWN, remove_messages
from airflow_poison.passes.relay import pull, transmit
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.queue_disabling import REMOVAL, Inspection, RecoveryOrder, RecoveryStep
from airflow_poison.values.errors import ConversationEndedError, ConversationNotFoundError, MessageNotFoundError, PoisonError
from airflow_poison.values.events import EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.texts import Plain, plain

if TYPE_CHECKING:
    from airflow_poison.dialogs.acts import ConversationEndpoint
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
    :param on_ended: called when a conversation has ended, after the commit, at least once; its errors are raised after the partner got its message.
    :param wait: how long to wait while a pass holds the conversation's group.
    :param allowed: looks at the control row that the commit builds upon; what it raises prevents the commit.
    """

    table: QueueTable
    clock: Clock
    store: QueueStore | None
    error: int | None = None
    description: str = ""
    cleanup: bool = False
    on_ended: Callable[[ConversationEnded], object] = lambda _ended: None
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
        """End a conversation once a key; a repetition calls ``on_ended`` again. Raises what ``end_conversation`` and ``on_ended`` raise."""
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
        return self.leave(done), self.report_end(handle)

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

    def report_end(self, handle: str) -> ConversationEnded:
        """Call ``on_ended`` for a conversation that has ended."""
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
        self.on_ended(ended)
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
        facts = {"queue": self.queue, "before": self.before, "steps": list(self.steps), "removed": len(self.removed)}
        return facts | {"messages": plain(self.removed[:MOST_SHOWN]), "ended": plain(self.ended)}


def recover(
    table: QueueTable,
    clock: Clock,
    *,
    lookup_id: int | None = None,
    store: QueueStore | None = None,
    on_ended: Callable[[ConversationEnded], object] = lambda _ended: None,
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
    how = Ending(table, clock, store, REMOVAL.error, REMOVAL.description, on_ended=on_ended)
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
