"""Recover: end the conversation of the message that halted a queue, and enable the queue (spec SB-15, SB-24, SB-26, SB-30, SB-34)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from airflow_poison.core.errors import MessageNotFoundError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.passes.alter import enable
from airflow_poison.core.passes.browse import look_up
from airflow_poison.core.passes.conversations.ending import Ending, ended_with, open_endpoint, recovery_steps
from airflow_poison.core.passes.inspect import inspect
from airflow_poison.core.passes.messages import Chosen
from airflow_poison.core.passes.remove import MOST_SHOWN, remove_messages
from airflow_poison.core.policies.inspection import Inspection
from airflow_poison.core.policies.recovery import REMOVAL, RecoveryStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.passes.conversations.ending import ConversationEnded
    from airflow_poison.core.passes.message_rows import MessageRow
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable


@dataclass(frozen=True, slots=True)
class RecoverResult:
    """What a recovery did.

    :param before: the state that the queue was in.
    :param steps: what was done, in order.
    :param removed: the messages that are gone: the one that halted the queue, with all of its conversation (spec SB-30).
    :param ended: the conversation that was ended with an error, which its partner is told (spec SB-32); None: the messages belonged to none.
    """

    queue: str
    before: str
    steps: tuple[str, ...]
    removed: tuple[MessageRow, ...]
    ended: ConversationEnded | None = None

    def to_dict(self) -> dict[str, object]:
        """Return plain values; of the messages the first 100, bodies cut at 64 KiB."""
        shown = [message.to_dict() for message in self.removed[:MOST_SHOWN]]
        ended = None if self.ended is None else self.ended.to_dict()
        return {
            "queue": self.queue,
            "before": self.before,
            "steps": list(self.steps),
            "removed": len(self.removed),
            "messages": shown,
            "ended": ended,
        }


def recover(
    table: QueueTable,
    clock: Clock,
    *,
    lookup_id: int | None = None,
    store: QueueStore | None = None,
    told: Callable[[ConversationEnded], object] = lambda _ended: None,
) -> RecoverResult:
    """Remove the message that halted the queue, then let the queue receive again; in the other order where its settings say so (spec SB-34).

    A message of a dialog goes with its conversation, which ends with error 127, "Unable to process message." (spec SB-26): the partner is told.
    Running it again after it was killed in the middle finishes it. Inspect first: removal is for good, and for a message that cannot be
    processed. The local application gets no message (spec SB-31).

    :param lookup_id: another message than the one that halted the queue.
    :param store: where the partner's queue is; None: the next pass of the queue tells it.
    :param told: called when a conversation has ended, at least once, for whoever keeps state for it at this side.
    Raises MessageNotFoundError when no message halted the queue and none is named, MessageClaimedError and ConversationLockedError while a pass
    has one of them.
    """
    control = table.snapshot().control
    culprit = control.halted_by
    wanted = lookup_id if lookup_id is not None else culprit
    if wanted is None:
        raise MessageNotFoundError(f"No message halted queue {table.name!r}: name the one to remove, or enable the queue. Nothing was changed.")
    ending = Ending(table, clock, store, REMOVAL.error, REMOVAL.description, told=told)
    removed: tuple[MessageRow, ...] = ()
    ended: ConversationEnded | None = None
    steps = recovery_steps(control)
    for step in steps:
        reach("pass.recover.before_step")
        match step:
            case RecoveryStep.END_CONVERSATION:
                removed, ended = _end(ending, wanted, gone_is_done=wanted == culprit)
            case RecoveryStep.ENABLE:
                enable(table, clock)
            case _:
                assert_never(step)
    ending.carry()
    return RecoverResult(table.name, control.state.value, tuple(step.value for step in steps), removed, ended)


def _end(ending: Ending, lookup_id: int, *, gone_is_done: bool) -> tuple[tuple[MessageRow, ...], ConversationEnded | None]:
    """Remove a message, with its whole conversation when it belongs to one.

    :param gone_is_done: that it is gone means that an earlier try was killed behind this step.
    """
    table, clock = ending.table, ending.clock
    found = inspect(table, clock, lookup_id=lookup_id, mode=Inspection.BROWSE).messages
    if not found and (handle := ended_with(table, lookup_id)) is not None:
        return (), ending.end_again(handle, _key(handle))[1]
    if not found and gone_is_done:
        return (), None
    conversation = found[0].conversation_id if found else None
    if conversation and open_endpoint(table, conversation) is not None:
        removed = look_up(table, Chosen(conversation_id=conversation))
        return removed, ending.end(conversation, _key(conversation))[1]
    if conversation:
        return remove_messages(table, clock, conversation_id=conversation).messages, None
    return remove_messages(table, clock, lookup_ids=[lookup_id]).messages, None


def _key(handle: str) -> str:
    """Return the key under which a recovery ends a conversation: whoever repeats it finds its own work."""
    return f"recover:{handle}"
