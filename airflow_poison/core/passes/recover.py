"""Recover: end the conversation of the message that halted a queue, and enable the queue (spec SB-15, SB-24, SB-26, SB-30, SB-34)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from airflow_poison.core.errors import MessageNotFoundError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.passes.alter import enable
from airflow_poison.core.passes.inspect import inspect
from airflow_poison.core.passes.remove import MOST_SHOWN, remove_messages
from airflow_poison.core.policies import policy_from_dict
from airflow_poison.core.policies.inspection import Inspection
from airflow_poison.core.policies.recovery import RecoveryOrder, RecoveryStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.passes.message_rows import MessageRow
    from airflow_poison.core.store.seam import QueueTable


@dataclass(frozen=True, slots=True)
class RecoverResult:
    """What a recovery did.

    :param before: the state that the queue was in.
    :param steps: what was done, in order.
    :param removed: the messages that are gone: the one that halted the queue, with all of its conversation (spec SB-30).
    """

    queue: str
    before: str
    steps: tuple[str, ...]
    removed: tuple[MessageRow, ...]

    def to_dict(self) -> dict[str, object]:
        """Return plain values; of the messages the first 100, bodies cut at 64 KiB."""
        shown = [message.to_dict() for message in self.removed[:MOST_SHOWN]]
        return {"queue": self.queue, "before": self.before, "steps": list(self.steps), "removed": len(self.removed), "messages": shown}


def recover(table: QueueTable, clock: Clock, *, lookup_id: int | None = None) -> RecoverResult:
    """Remove the message that halted the queue, then let the queue receive again; in the other order where its settings say so (spec SB-34).

    Running it again after it was killed in the middle finishes it. Inspect first: removal is for good, and for a message that cannot be
    processed (spec SB-26). Nothing tells the local application (spec SB-31).

    :param lookup_id: another message than the one that halted the queue.
    Raises MessageNotFoundError when no message halted the queue and none is named, MessageClaimedError while a pass has one of them.
    """
    control = table.snapshot().control
    culprit = control.halted_by
    wanted = lookup_id if lookup_id is not None else culprit
    if wanted is None:
        raise MessageNotFoundError(f"No message halted queue {table.name!r}: name the one to remove, or enable the queue. Nothing was changed.")
    removed: tuple[MessageRow, ...] = ()
    steps = _order(control.policy).steps
    for step in steps:
        reach("pass.recover.before_step")
        match step:
            case RecoveryStep.END_CONVERSATION:
                removed = _end(table, clock, wanted, gone_is_done=wanted == culprit)
            case RecoveryStep.ENABLE:
                enable(table, clock)
            case _:
                assert_never(step)
    return RecoverResult(table.name, control.state.value, tuple(step.value for step in steps), removed)


def _order(settings: Mapping[str, object]) -> RecoveryOrder:
    """Return the order that the queue's settings want; the safe one where its system has no say."""
    return RecoveryOrder(getattr(policy_from_dict(settings), "recovery_order", RecoveryOrder.END_THEN_ENABLE))


def _end(table: QueueTable, clock: Clock, lookup_id: int, *, gone_is_done: bool) -> tuple[MessageRow, ...]:
    """Remove a message, with its whole conversation when it belongs to one.

    :param gone_is_done: that it is gone means that an earlier try was killed behind this step.
    """
    found = inspect(table, clock, lookup_id=lookup_id, mode=Inspection.BROWSE).messages
    if not found and gone_is_done:
        return ()
    if found and (conversation := found[0].conversation_id):
        return remove_messages(table, clock, conversation_id=conversation).messages
    return remove_messages(table, clock, lookup_ids=[lookup_id]).messages
